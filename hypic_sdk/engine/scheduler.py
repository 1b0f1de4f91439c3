"""Every request from `submit` to its last event: what a forward changes, and how it ends."""

from __future__ import annotations

import logging
from typing import final

from hypic_sdk.config import SchedulerConfig
from hypic_sdk.engine.admission import Admission
from hypic_sdk.engine.assembly import keep_reply, keep_snapshots
from hypic_sdk.engine.batch import AssemblyStep, Batch, ColdStep, Sampled, StepResult
from hypic_sdk.engine.cold_job import ColdJob
from hypic_sdk.engine.cold_memory import ColdArea
from hypic_sdk.engine.cold_queue import ColdQueue
from hypic_sdk.engine.composer import Composer
from hypic_sdk.engine.ending import error_event, finish_of, token_event
from hypic_sdk.engine.report import engine_report
from hypic_sdk.engine.request import Phase, Request
from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.engine.warm_run import WarmRun
from hypic_sdk.engine.warming import Warming
from hypic_sdk.errors import DeadlineExceeded, HypicError, NumericsError, RequestCancelled
from hypic_sdk.store.layout import StoreLayout
from hypic_sdk.store.store import Store
from hypic_sdk.transport.messages import FinishReason, TokenEvent, WarmEvent, WarmRequest

logger = logging.getLogger(__name__)

Event = TokenEvent | WarmEvent


@final
class Scheduler:
    """Owns every request from `submit` to its last event; the only one that changes its state."""

    def __init__(
        self,
        store: Store,
        layout: StoreLayout,
        area: ColdArea,
        settings: EngineSettings,
        config: SchedulerConfig,
    ) -> None:
        self._store = store
        self._settings = settings
        self._cold = ColdQueue(store, area, chunk_tokens=settings.chunk_tokens)
        self._admission = Admission(store, layout, self._cold, config)
        self._warming = Warming(store, self._cold, settings, timeout_s=config.admission_timeout_s)
        self._requests: dict[str, Request] = {}  # all that have not ended, waiting ones too
        self._active: list[Request] = []  # admitted, in order of admission
        self._events: list[Event] = []
        self._step = 0
        self._composer = Composer(settings.step_tokens)

    @property
    def has_work(self) -> bool:
        """Whether a step would do or tell anything."""
        return bool(self._requests or self._events or len(self._warming))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests or request_id in self._warming

    # -- the door

    def submit(self, request: Request) -> None:
        """Queue a request.  Raises QueueFull."""
        self._admission.push(request)
        self._requests[request.request_id] = request

    def warm(self, message: WarmRequest) -> None:
        """Queue a warm request."""
        self._warming.add(WarmRun(message))

    def cancel(self, request_id: str) -> None:
        """Free all that the request holds, now; its last event comes with the next step."""
        if request_id in self._warming:
            self._events += self._warming.cancel(request_id)
            self._admission.is_stale = True
        elif request_id in self._requests:
            error = RequestCancelled("the request was cancelled", request_id=request_id)
            self._fail_request(self._requests[request_id], error)

    def entries_changed(self) -> None:
        """Entries were deleted: what waits may fit now, or find less."""
        self._admission.is_stale = True

    def tell(self, event: Event) -> None:
        """Queue an event for the next step."""
        self._events.append(event)

    def take_events(self) -> list[Event]:
        """Everything to be told since the last call."""
        events, self._events = self._events, []
        return events

    # -- before a forward

    def prepare(self, now_s: float) -> None:
        """End what waited too long; admit what fits."""
        self._expire(now_s)
        admitted, refused = self._admission.admit(
            num_active=len(self._active), now_s=now_s, stamp=self._step
        )
        self._active += admitted
        for refusal in refused:
            self._fail_request(refusal.request, refusal.error, queued=False)
        self._events += self._warming.advance(
            room_is_wanted=self._admission.room_is_wanted, now_s=now_s, stamp=self._step
        )

    def _expire(self, now_s: float) -> None:
        for request in list(self._requests.values()):
            if request.deadline_s is not None and now_s > request.deadline_s:
                timeout_s = request.message.timeout_s
                message = f"the request did not end within its {timeout_s:g} s"
                self._fail_request(request, DeadlineExceeded(message, timeout_s=timeout_s))
        for refusal in self._admission.overdue(now_s, num_active=len(self._active)):
            self._fail_request(refusal.request, refusal.error)

    def next_batch(self) -> Batch | None:
        """What the next forward runs; none if there is nothing to run."""
        self._step += 1
        return self._composer.compose(self._active, self._cold)

    # -- after a forward

    def commit(self, batch: Batch, result: StepResult, now_s: float) -> None:
        """Book what a forward gave."""
        for request in batch.decodes:
            request.position += 1
        for step in batch.assemblies:
            self._advance(step, now_s)
        row_ms = result.step_ms / batch.num_rows
        for cold, is_finite in zip(batch.colds, result.cold_finite, strict=True):
            self._advance_cold(cold, row_ms, is_finite=is_finite)
        for request, sampled in zip(batch.sampling, result.sampled, strict=True):
            self._accept(request, sampled, now_s)

    def _advance(self, step: AssemblyStep, now_s: float) -> None:
        """A stretch of an assembling request went through."""
        request, grant = step.request, step.request.held
        request.position, request.next_unit = step.position, step.next_unit
        request.stamp = self._step
        grant.load_slot = grant.state_slot
        keep_snapshots(self._store, step)
        if request.position == request.num_prompt_tokens:
            grant.lease.release_entries()
            self._admission.is_stale = True
            request.phase = Phase.DECODING
            request.clock.first_token_s = now_s
            if request.max_tokens == 0:
                self._finish(request, FinishReason.LENGTH, None)

    def _advance_cold(self, step: ColdStep, row_ms: float, *, is_finite: bool) -> None:
        """A grid chunk went through."""
        job = step.job
        cold_ms = row_ms * len(step.chunk.token_ids)
        self._cold.advance(step, cold_ms=cold_ms, stamp=self._step)
        if not is_finite:
            message = f"a segment of {job.num_tokens} tokens gave values that are not finite"
            self._fail_job(job, NumericsError(message))
        elif step.is_last:
            self._cold.commit(job)
            self._admission.is_stale = True
            for request in job.requests:
                request.held.pending.discard(job.key)
                request.cold_ms[job.key] = job.cold_ms
            self._events += self._warming.committed(job)

    def _accept(self, request: Request, sampled: Sampled, now_s: float) -> None:
        """A request got a token."""
        if not sampled.is_finite:
            self._fail_request(request, NumericsError("the logits are not finite"))
            return
        finish = finish_of(request, sampled.token_id, self._settings.eos_token_ids)
        if finish is not FinishReason.STOP:
            request.reply.append(sampled.token_id)
        if finish is None:
            self._events.append(token_event(request, sampled))
        else:
            self._finish(request, finish, sampled)

    def _finish(self, request: Request, finish: FinishReason, sampled: Sampled | None) -> None:
        """A request ended well."""
        keep_reply(self._store, request)
        report = engine_report(request)
        self._events.append(token_event(request, sampled, finish=finish, report=report))
        self._end(request)

    # -- failures

    def fail(self, batch: Batch, error: HypicError) -> None:
        """A forward failed: so do its requests, and those that wait for its cold segments."""
        for request in (*batch.decodes, *(step.request for step in batch.assemblies)):
            self._fail_request(request, error)
        for step in batch.colds:
            self._fail_job(step.job, error)

    def abort(self, error: HypicError) -> None:
        """End everything in flight."""
        for request in list(self._requests.values()):
            self._fail_request(request, error)
        self._events += self._warming.abort(error)

    def _fail_job(self, job: ColdJob, error: HypicError) -> None:
        if job not in self._cold:  # given up already, with its last waiter
            return
        self._cold.abandon(job)
        self._admission.is_stale = True
        self._events += self._warming.failed(job, error)
        for request in job.requests:
            self._fail_request(request, error)

    def _fail_request(self, request: Request, error: HypicError, *, queued: bool = True) -> None:
        """End a request with an error, once."""
        if request.phase is Phase.ENDED:
            return
        logger.info("request failed request=%s code=%s", request.request_id, error.code)
        if request.phase is Phase.WAITING and queued:
            self._admission.remove(request)
        report = None
        if request.clock.first_token_s is not None:
            report = engine_report(request)
        self._events.append(error_event(request.request_id, error, report))
        self._end(request)

    def _end(self, request: Request) -> None:
        """Give back all that the request holds."""
        was_active = request.grant is not None
        request.phase = Phase.ENDED
        del self._requests[request.request_id]
        if was_active:
            self._active.remove(request)
            if request.held.pending:
                self._cold.leave(request)
            request.held.lease.close()
            self._admission.is_stale = True
