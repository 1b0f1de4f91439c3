"""What one step runs: decode rows, live runs and grid chunks of cold segments under a budget.

Every decode row goes.  Of the runs, and of the chunks, first place alternates between the request
(or segment) that came first and the one that has waited longest since its last turn, the shortest
if several did; the others follow in the latter order.  The first run or chunk of a step goes
whatever the budget says.  Runs stand before chunks, but chunks that were left out of one step stand
first in the next.  So something long always goes on, and something short is never stuck behind it.

While a request is active, chunks that only background warm jobs wait for go in one step of
`BACKGROUND_EVERY`: live requests hardly notice them, and they come to their end all the same.

Joined, a request goes on in the very step that completes the entries it waits for, as far as what
is left of the budget allows: no step is spent on its live rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, final

from hypic_sdk.engine.assembly import (
    Reach,
    next_run_tokens,
    reach_of,
    remaining_tokens,
    take_step,
)
from hypic_sdk.engine.batch import Batch, ColdStep
from hypic_sdk.engine.cold_job import ColdJob
from hypic_sdk.engine.cold_queue import ColdQueue
from hypic_sdk.engine.request import Phase, Request

Waiting = TypeVar("Waiting", Request, ColdJob)

BACKGROUND_EVERY = 8


@final
class Turns:
    """Whose turn it is among the waiting of one kind."""

    def __init__(self) -> None:
        self._is_oldest_first = False

    def order(
        self, waiting: Sequence[Waiting], remaining: Callable[[Waiting], int]
    ) -> list[Waiting]:
        """The waiting, given in order of arrival, in order of turns."""
        ordered = sorted(waiting, key=lambda one: (one.stamp, remaining(one)))
        if self._is_oldest_first and waiting:
            ordered.remove(waiting[0])
            ordered.insert(0, waiting[0])
        return ordered

    def passed(self) -> None:
        """Somebody had a turn."""
        self._is_oldest_first = not self._is_oldest_first


@final
class Composer:
    """Makes the batch of each step."""

    def __init__(self, step_tokens: int, *, joined: bool) -> None:
        self._step_tokens = step_tokens
        self._joined = joined
        self._run_turns = Turns()
        self._chunk_turns = Turns()
        self._chunks_were_left_out = False
        self._steps_without_background = 0

    def compose(self, active: Sequence[Request], cold: ColdQueue) -> Batch | None:
        """The next batch; none if nothing can run.

        Args:
            active: admitted requests, in order of admission.
        """
        decoding = (request for request in active if request.phase is Phase.DECODING)
        replies = [reply for request in decoding for reply in request.replies if reply.goes_on]
        decodes = tuple(reply for reply in replies if reply.held_logits is None)
        held = tuple(reply for reply in replies if reply.held_logits is not None)
        assembling = [request for request in active if request.phase is Phase.ASSEMBLING]
        budget = self._step_tokens - len(decodes)
        jobs = self._jobs_of_this_step(cold, is_live=bool(active))
        colds: list[ColdStep] = []
        if self._chunks_were_left_out:
            colds = self._take_chunks(cold, jobs, 0, must_take=True)
            budget -= _num_tokens(colds)
        reaches = self._take_runs(assembling, budget, must_take=not colds)
        budget -= sum(reach.num_tokens for reach in reaches.values())
        if not colds:
            colds = self._take_chunks(cold, jobs, budget, must_take=not reaches)
            budget -= _num_tokens(colds)
        if self._joined:
            self._join(reaches, assembling, colds, budget)
        assemblies = tuple(take_step(reach) for reach in reaches.values())
        self._chunks_were_left_out = len(jobs) > 0 and not colds
        if any(step.job.is_background for step in colds):
            self._steps_without_background = 0
        if not (decodes or assemblies or colds or held):
            return None
        return Batch(decodes, assemblies, tuple(colds), held)

    def _take_runs(
        self, requests: Sequence[Request], budget: int, *, must_take: bool
    ) -> dict[Request, Reach]:
        """Runs that fit; with `must_take` the first goes anyhow."""
        ready = [request for request in requests if next_run_tokens(request) is not None]
        reaches: dict[Request, Reach] = {}
        for request in self._run_turns.order(ready, remaining_tokens):
            reach = reach_of(request, budget, must_take=must_take and not reaches)
            if reach is not None:
                reaches[request] = reach
                budget -= reach.num_tokens
        if reaches:
            self._run_turns.passed()
        return reaches

    def _join(
        self,
        reaches: dict[Request, Reach],
        requests: Sequence[Request],
        colds: Sequence[ColdStep],
        budget: int,
    ) -> None:
        """Let requests reach over entries that these chunks complete, where their runs fit."""
        ends = [step.job for step in colds if step.is_last]
        for request in self._run_turns.order(requests, remaining_tokens):
            joined = {job.key: job.filling.entry for job in ends if request in job.requests}
            before = reaches.get(request)
            num_before = 0 if before is None else before.num_tokens
            reach = reach_of(request, budget + num_before, joined=joined) if joined else None
            if reach is not None and reach.num_tokens > num_before:
                reaches[request] = reach
                budget -= reach.num_tokens - num_before

    def _jobs_of_this_step(self, cold: ColdQueue, *, is_live: bool) -> list[ColdJob]:
        """Cold jobs that may have a turn; background ones not in every step beside requests."""
        self._steps_without_background += 1
        if is_live and self._steps_without_background < BACKGROUND_EVERY:
            return [job for job in cold.jobs if not job.is_background]
        return list(cold.jobs)

    def _take_chunks(
        self, cold: ColdQueue, jobs: Sequence[ColdJob], budget: int, *, must_take: bool
    ) -> list[ColdStep]:
        """Grid chunks that fit, one a segment; with `must_take` the first goes anyhow."""
        steps: list[ColdStep] = []
        for job in self._chunk_turns.order(jobs, lambda job: job.remaining_tokens):
            num_tokens = cold.chunk_tokens_of(job)
            if num_tokens > budget and not (must_take and not steps):
                continue
            step = cold.take_chunk(job)
            if step is not None:
                steps.append(step)
                budget -= num_tokens
        if steps:
            self._chunk_turns.passed()
        return steps


def _num_tokens(colds: Sequence[ColdStep]) -> int:
    return sum(len(step.chunk.token_ids) for step in colds)
