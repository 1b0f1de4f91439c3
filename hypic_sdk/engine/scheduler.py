"""Every request from `submit` to its last event: what a forward changes, and how it ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from hypic_sdk.config import SchedulerConfig
from hypic_sdk.engine.admission import Admission
from hypic_sdk.engine.assembly import keep_reply, keep_snapshots
from hypic_sdk.engine.batch import AssemblyStep, Batch, ColdStep, Sampled, StepResult
from hypic_sdk.engine.cold_job import ColdJob
from hypic_sdk.engine.cold_memory import ColdArea
from hypic_sdk.engine.cold_queue import ColdQueue
from hypic_sdk.engine.composer import Composer
from hypic_sdk.engine.ending import (
    error_event,
    is_end_token,
    not_finite,
    not_finite_segment,
    token_event,
)
from hypic_sdk.engine.entry_ledger import EntryLedger
from hypic_sdk.engine.fetching import EntryFetcher, Fetching
from hypic_sdk.engine.grammars import GrammarBook
from hypic_sdk.engine.report import engine_report
from hypic_sdk.engine.request import Phase, Reply, Request
from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.engine.warm_run import WarmRun
from hypic_sdk.engine.warming import Warming
from hypic_sdk.errors import DeadlineExceeded, HypicError, RequestCancelled
from hypic_sdk.prompt.segment import SegmentKey
from hypic_sdk.store.store import Store
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import FinishReason, WarmRequest

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


@final
class Scheduler:
    """Owns every request from `submit` to its last event; the only one that changes its state."""

    def __init__(
        self,
        store: Store,
        area: ColdArea,
        settings: EngineSettings,
        config: SchedulerConfig,
        grammars: GrammarBook | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._cold = ColdQueue(store, area, chunk_tokens=settings.chunk_tokens)
        self._admission = Admission(store, self._cold, config, grammars)
        self._warming = Warming(store, self._cold, settings, timeout_s=config.admission_timeout_s)
        self._requests: dict[str, Request] = {}  # all that have not ended, waiting ones too
        self._active: list[Request] = []  # admitted, in order of admission
        self._events: list[Event] = []
        self._step = 0
        self._fetching = Fetching(store.slabs)
        self.ledger: EntryLedger | None = None  # of a worker among several
        self._cold.on_drop(self._fetching.drop)
        self._composer = Composer(settings.step_tokens, joined=settings.joined)

    @property
    def has_work(self) -> bool:
        """Whether a step would do or tell anything."""
        return bool(self._requests or self._events or len(self._warming))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests or request_id in self._warming

    @property
    def is_compiling(self) -> bool:
        """Whether a request waits for nothing but its grammar."""
        return self._admission.is_compiling

    @property
    def is_fetching(self) -> bool:
        """Whether an entry of another worker is on its way."""
        return self._fetching.is_waiting

    def connect(self, fetcher: EntryFetcher) -> None:
        """Follow a router's hints from now on."""
        self._fetching.connect(fetcher)

    def make_here(self, key: SegmentKey) -> None:
        """Fetch an entry no longer, if it is being fetched: compute it."""
        job = self._cold.job_of(key)
        if job is not None and job.fetch is not None:
            self._fetching.drop(job)

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

    def finish(self, request_id: str, reply_index: int) -> None:
        """End one reply as if an end token had come.

        Unknown and ended ones are ignored, and requests whose prompt is not done.
        """
        request = self._requests.get(request_id)
        if request is None or request.phase is not Phase.DECODING:
            return
        for reply in request.open_replies:
            if reply.index == reply_index:
                self._finish(reply, FinishReason.STOP, None)

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

    @property
    def _num_active(self) -> int:
        """Replies of admitted requests."""
        return sum(len(request.replies) for request in self._active)

    # -- before a forward

    def prepare(self, now_s: float) -> None:
        """End what waited too long; admit what fits."""
        self._expire(now_s)
        for job in self._fetching.settle():
            self._commit_job(job, now_s)
        admitted, refused = self._admission.admit(
            num_active=self._num_active, now_s=now_s, stamp=self._step
        )
        self._active += admitted
        for request in admitted:
            self._fetch_for(request)
        for refusal in refused:
            self._fail_request(refusal.request, refusal.error, queued=False)
        self._events += self._warming.advance(
            room_is_wanted=self._admission.room_is_wanted, now_s=now_s, stamp=self._step
        )

    def _fetch_for(self, request: Request) -> None:
        """Ask other workers for what they are said to hold or to make."""
        sources = {hint.segment_id: hint.worker for hint in request.message.placements}
        for key in request.held.own_jobs if sources else ():
            job = self._cold.job_of(key)
            if job is not None and job.segment_id in sources:
                self._fetching.begin(job, sources[job.segment_id], request.message.namespace)

    def _expire(self, now_s: float) -> None:
        for request in list(self._requests.values()):
            if request.deadline_s is not None and now_s > request.deadline_s:
                timeout_s = request.message.timeout_s
                message = f"the request did not end within its {timeout_s:g} s"
                self._fail_request(request, DeadlineExceeded(message, timeout_s=timeout_s))
        for refusal in self._admission.overdue(now_s, num_active=self._num_active):
            self._fail_request(refusal.request, refusal.error)

    def next_batch(self) -> Batch | None:
        """What the next forward runs; none if there is nothing to run."""
        self._step += 1
        return self._composer.compose(self._active, self._cold)

    @property
    def is_decoding_only(self) -> bool:
        """Whether nothing but decode rows can run now."""
        has_prompts = any(request.phase is not Phase.DECODING for request in self._active)
        return not has_prompts and not self._cold.jobs

    # -- after a forward

    def launched(
        self, batch: Batch, drawn: Sequence[Reply], held: Sequence[tuple[Reply, torch.Tensor]]
    ) -> None:
        """A forward runs: book what is known of it before its tokens are.

        Whatever else can be worked out now costs nobody time: the device is at work.
        """
        for reply in batch.decodes:
            reply.position += 1
        for reply in drawn:
            reply.held_logits = None
        for reply, logits_V in held:
            reply.held_logits = logits_V
        for spec in (spec for step in batch.assemblies for spec in step.chain_specs):
            _ = spec.slot_ranges

    def commit(self, batch: Batch, result: StepResult, now_s: float) -> int:
        """Book what a forward gave; how many tokens came behind an end."""
        row_ms = result.step_ms / max(1, batch.num_rows)
        for cold, is_finite in zip(batch.colds, result.finite.colds, strict=True):
            self._advance_cold(cold, row_ms, now_s, is_finite=is_finite)
        saved = zip(batch.assemblies, result.prompt_logprobs, result.finite.snapshots, strict=True)
        for step, told, are_finite in saved:
            if step.request.phase is not Phase.ENDED:  # with a segment of this very step
                step.request.prompt_logprobs += told
                self._advance(step, are_finite, now_s)
        late = [reply for reply, _ in result.sampled if reply.is_over]
        for reply, sampled in result.sampled:
            if not reply.is_over:  # also with another reply of its request, in this very step
                self._accept(reply, sampled)
        return len(late)

    def _advance(self, step: AssemblyStep, are_finite: Sequence[bool], now_s: float) -> None:
        """A stretch of an assembling request went through; `are_finite`: its snapshots."""
        request, grant = step.request, step.request.held
        request.position, request.next_unit = step.position, step.next_unit
        request.stamp = self._step
        grant.load_slot = grant.state_slot
        keep_snapshots(self._store, step, are_finite)
        if request.position == request.num_prompt_tokens:
            grant.lease.release_entries()
            self._admission.is_stale = True
            request.phase = Phase.DECODING
            request.clock.first_token_s = now_s
            if request.max_tokens == 0:
                for reply in request.replies:
                    self._finish(reply, FinishReason.LENGTH, None)

    def _advance_cold(
        self, step: ColdStep, row_ms: float, now_s: float, *, is_finite: bool
    ) -> None:
        """A grid chunk went through."""
        job = step.job
        if job not in self._cold:  # given up, with a request that failed in this very step
            return
        cold_ms = row_ms * len(step.chunk.token_ids)
        self._cold.advance(step, cold_ms=cold_ms, stamp=self._step)
        if not is_finite:
            self._fail_job(job, not_finite_segment(job))
        elif step.is_last:
            self._commit_job(job, now_s)

    def _commit_job(self, job: ColdJob, now_s: float) -> None:
        """An entry is complete: whoever waits for it goes on."""
        self._cold.commit(job)
        if self.ledger is not None:
            self.ledger.made(job)
        self._admission.is_stale = True
        for request in job.requests:
            request.held.pending.discard(job.key)
            # who did not begin it waited for it, and has nothing else to tell
            admitted_s = request.clock.admitted_s
            is_own = job.key in request.held.own_jobs or admitted_s is None
            waited_ms = 0.0 if admitted_s is None else 1e3 * (now_s - admitted_s)
            request.cold_ms[job.key] = job.cold_ms if is_own else waited_ms
            if job.was_fetched:
                (request.made_elsewhere if job.cold_ms else request.pulled).add(job.key)
        self._events += self._warming.committed(job)

    def _accept(self, reply: Reply, sampled: Sampled) -> None:
        """A reply got a token."""
        request = reply.request
        if not sampled.is_finite:
            self._fail_request(request, not_finite(reply))
        elif sampled.is_stuck and reply.grammar is not None:
            self._fail_request(request, reply.grammar.stuck(len(reply.token_ids)))
        elif is_end_token(reply, sampled.token_id, self._settings.eos_token_ids):
            self._finish(reply, FinishReason.STOP, None)
        else:
            reply.token_ids.append(sampled.token_id)
            if reply.grammar is not None and reply.grammar.take(sampled.token_id):
                self._finish(reply, FinishReason.STOP, sampled)
            elif len(reply.token_ids) >= request.max_tokens:
                self._finish(reply, FinishReason.LENGTH, sampled)
            else:
                self._events.append(token_event(reply, sampled))

    def _finish(self, reply: Reply, finish: FinishReason, sampled: Sampled | None) -> None:
        """A reply ended well, and with the last one its request."""
        request = reply.request
        keep_reply(self._store, reply)
        reply.finish = finish
        is_last = not request.open_replies
        report = engine_report(request, self._settings.reuse) if is_last else None
        self._events.append(token_event(reply, sampled, report=report))
        if is_last:
            self._end(request)

    # -- failures

    def fail(self, batch: Batch, error: HypicError, drawn: Sequence[Reply] = ()) -> None:
        """A forward failed: so do its requests, and those that wait for its cold segments.

        Args:
            drawn: replies whose tokens went with it.
        """
        # who only held logits had no part in a forward
        alone = batch.held if batch.num_rows == 0 else ()
        decoding = (reply.request for reply in (*batch.decodes, *alone, *drawn))
        for request in (*decoding, *(step.request for step in batch.assemblies)):
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
            report = engine_report(request, self._settings.reuse)
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
