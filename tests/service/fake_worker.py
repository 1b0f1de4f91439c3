"""A worker without a model: says what a test tells it to, and keeps the books of a real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypic_sdk.errors import HypicError, RequestCancelled, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role
from hypic_sdk.service.worker_port import Event
from hypic_sdk.transport.control import Question
from hypic_sdk.transport.messages import (
    EngineReport,
    EngineRequest,
    FinishReason,
    MissReason,
    SegmentReport,
    SegmentStatus,
    TokenEvent,
    TokenLogprobs,
    WarmEvent,
    WarmRequest,
)

Script = Callable[[EngineRequest], Sequence[int]]


class FakeWorker:
    """One token an event.  Segments become warm as in an engine that keeps everything."""

    def __init__(self, reply: Script | Sequence[int] = (), *, ends: bool = True) -> None:
        """
        Args:
            reply: ids to say, or a function from the request to them.
            ends: after them comes an end token, else the reply runs into its limit.
        """
        self.reply = reply
        self.ends = ends
        self.messages: list[EngineRequest | WarmRequest] = []
        self.cancelled: list[str] = []
        self.finished: list[str] = []
        self.warm: set[tuple[str, tuple[int, ...]]] = set()
        self.pinned: set[tuple[str, tuple[int, ...]]] = set()
        self.priorities: dict[tuple[str, tuple[int, ...]], int] = {}
        self.limits: dict[str, int] = {}
        self.failure: HypicError | None = None  # ends the next request after its first token
        self.gate = threading.Event()  # a warm job waits here between its segments
        self.gate.set()

    @property
    def last(self) -> EngineRequest:
        """The last generation that was asked for."""
        return next(m for m in reversed(self.messages) if isinstance(m, EngineRequest))

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        self.messages.append(message)
        if isinstance(message, EngineRequest):
            return self._generate(message)
        events = self._warm_up(message)
        if on_event is None:
            return events
        threading.Thread(target=lambda: [on_event(event) for event in events]).start()
        return iter(())

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.gate.set()

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        self.finished.append(request_id)

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> list[bool]:
        return [(namespace, part.token_ids) in self.warm for part in parts]

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        keys = [(namespace, part.token_ids) for part in parts]
        match question:
            case Question.LOOK:
                return [
                    ("warm" if key in self.warm else "cold", 8 * len(key[1]), key in self.pinned)
                    for key in keys
                ]
            case Question.PIN:
                self.pinned.update(keys)
            case Question.UNPIN:
                self.pinned.difference_update(keys)
            case Question.PRIORITY:
                self.priorities.update(dict.fromkeys(keys, number))
            case Question.LIMIT:
                self.limits[namespace] = number
            case Question.HOLDINGS:
                held = [key for key in self.warm if key[0] == namespace]
                return {"num_bytes": 8 * sum(len(key[1]) for key in held)}
            case Question.CLEAR:
                held = {key for key in self.warm if key[0] == namespace}
                self.warm -= held
                return len(held)
            case _:
                raise AssertionError(question)
        return None

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        self.warm -= {(namespace, part.token_ids) for part in parts}

    def _generate(self, message: EngineRequest) -> Iterator[Event]:
        report = self._report(message)
        ids = list(self.reply(message) if callable(self.reply) else self.reply)
        limit = message.sampling.max_tokens
        for number, token_id in enumerate(ids[:limit]):
            if message.request_id in self.cancelled:
                error = RequestCancelled("the request was cancelled").to_payload()
                yield TokenEvent(message.request_id, finish_reason=FinishReason.ERROR,
                                 report=report, error=error)  # fmt: skip
                return
            if message.request_id in self.finished:
                yield TokenEvent(message.request_id, finish_reason=FinishReason.STOP, report=report)
                return
            if self.failure is not None and number == 1:
                error = {**self.failure.to_payload(), "request_id": message.request_id}
                yield TokenEvent(message.request_id, finish_reason=FinishReason.ERROR, error=error)
                return
            last = number + 1 == limit
            yield TokenEvent(
                message.request_id,
                (token_id,),
                self._logprobs(message, token_id, number),
                finish_reason=FinishReason.LENGTH if last else None,
                report=report if last else None,
            )
            if last:
                return
        reason = FinishReason.STOP if self.ends and limit else FinishReason.LENGTH
        yield TokenEvent(message.request_id, finish_reason=reason, report=report)

    @staticmethod
    def _logprobs(message: EngineRequest, token_id: int, number: int) -> tuple[TokenLogprobs, ...]:
        wanted = message.sampling.logprobs
        if wanted is None:
            return ()
        top = tuple((token_id + rank, -0.5 - rank) for rank in range(wanted))
        return (TokenLogprobs(token_id, -0.5 - number / 100, 1, top),)

    def _report(self, message: EngineRequest) -> EngineReport:
        prompt = message.prompt
        reports = [
            self._segment(message, part, start)
            for part, start in zip(prompt.parts, prompt.starts, strict=True)
            if part.segment_id is not None
        ]
        hits = [one for one in reports if one.status is SegmentStatus.HIT]
        cold = [one for one in reports if one.status is SegmentStatus.COLD]
        interiors = sum(one.reused_tokens for one in hits + cold)
        return EngineReport(
            prompt_tokens=prompt.num_tokens,
            chain_tokens=0,
            segment_tokens=interiors,
            live_tokens=prompt.num_tokens - interiors,
            seam_tokens=sum(one.seam_tokens for one in reports),
            cold_tokens=sum(one.num_tokens for one in cold),
            cached_tokens=sum(one.reused_tokens for one in hits),
            exact=not interiors,
            segments=tuple(reports),
            queue_ms=0.25,
            cold_ms=2.0 * len(cold),
            ttft_ms=7.5,
        )

    def _segment(self, message: EngineRequest, part: PromptPart, start: int) -> SegmentReport:
        key = (message.namespace, part.token_ids)
        seam = min(2, len(part.token_ids) - 1)
        if part.role is Role.TRAILING:
            status, reason, seam, reused = SegmentStatus.TRAILING, None, 0, 0
        elif not message.reuse:
            status, reason, seam, reused = SegmentStatus.LIVE, MissReason.POLICY_OFF, 0, 0
        elif key in self.warm:
            status, reason, reused = SegmentStatus.HIT, None, len(part.token_ids) - seam
        else:
            status, reason = SegmentStatus.COLD, MissReason.NEVER_WARMED
            reused = len(part.token_ids) - seam
            self.warm.add(key)
        assert part.segment_id is not None
        tier = "gpu" if status is SegmentStatus.HIT else None
        return SegmentReport(
            part.segment_id, part.message_index, part.content_index, status, reason, tier, start,
            len(part.token_ids), reused, seam, 2.0 if status is SegmentStatus.COLD else 0.0,
        )  # fmt: skip

    def _warm_up(self, message: WarmRequest) -> Iterator[Event]:
        for part in message.segments:
            self.gate.wait(timeout=10)
            if message.request_id in self.cancelled:
                error = RequestCancelled("the warm request was cancelled").to_payload()
                yield WarmEvent(message.request_id, error=error, done=True)
                return
            if self.failure is not None:
                error = self.failure.to_payload()
                yield WarmEvent(message.request_id, part.segment_id, error=error)
                continue
            key = (message.namespace, part.token_ids)
            status = SegmentStatus.HIT if key in self.warm else SegmentStatus.COLD
            self.warm.add(key)
            yield WarmEvent(message.request_id, part.segment_id, status,
                            len(part.token_ids), cold_ms=2.0)  # fmt: skip
        yield WarmEvent(message.request_id, done=True)


class LostWorker(FakeWorker):
    """Its events end without a last one."""

    def _generate(self, message: EngineRequest) -> Iterator[Event]:
        yield TokenEvent(message.request_id, (self.reply[0],))


class ClosedWorker(FakeWorker):
    """Takes nothing any more."""

    def submit(self, message: Any, on_event: Any = None) -> Iterator[Event]:
        raise WorkerLost("the worker was closed")
