"""What one step runs, and what came of it: the values between scheduler and runner."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from hypic_sdk.engine.chain_spec import chain_spec
from hypic_sdk.engine.cold_job import ColdJob
from hypic_sdk.engine.plan import LiveRun, Snapshot
from hypic_sdk.engine.request import Reply, Request
from hypic_sdk.engine.run_table import ColdChunk, LiveStretch
from hypic_sdk.store.entries import ChainSpec
from hypic_sdk.transport.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot of this step: the state row that it is saved to."""

    snapshot: Snapshot
    state_slot: int


@dataclass(frozen=True)
class AssemblyStep:
    """How far one assembling request gets in this step."""

    request: Request
    stretch: LiveStretch
    next_unit: int  # of the plan, afterwards
    position: int  # afterwards
    snapshots: tuple[KeptSnapshot, ...]

    @cached_property
    def chain_specs(self) -> tuple[ChainSpec, ...]:
        """What becomes of its snapshots, if all of it is finite."""
        request = self.request
        return tuple(
            chain_spec(
                request,
                request.held.kv,
                digest=kept.snapshot.digest,
                position=kept.snapshot.position,
                kind=kept.snapshot.kind,
                state_slot=kept.state_slot,
            )
            for kept in self.snapshots
        )

    def rows_before(self, position: int) -> int:
        """How many of its rows stand before a position of the prompt."""
        runs = (step for step in self.stretch.steps if isinstance(step, LiveRun))
        return sum(max(0, min(run.stop, position) - run.start) for run in runs)


@dataclass(frozen=True, slots=True)
class ColdStep:
    """How far one cold segment gets in this step."""

    job: ColdJob
    chunk: ColdChunk
    is_last: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: decode rows, then stretches, then cold chunks, in the order of rows."""

    decodes: tuple[Reply, ...]
    assemblies: tuple[AssemblyStep, ...]
    colds: tuple[ColdStep, ...]
    held: tuple[Reply, ...] = ()  # no rows: their logits are there, of an earlier step

    @property
    def sampling(self) -> list[Reply]:
        """Replies that get logits in this step, in the order of their rows.

        All first tokens of a request's replies are drawn from one row.
        """
        ready = [step.request for step in self.assemblies if step.stretch.wants_logits]
        return [*self.decodes, *(reply for request in ready for reply in request.replies)]

    @property
    def sampling_rows(self) -> list[int]:
        """Of `sampling`: which of the rows with logits each reply draws from."""
        ready = [step.request for step in self.assemblies if step.stretch.wants_logits]
        rows = list(range(len(self.decodes)))
        for row, request in enumerate(ready, len(self.decodes)):
            rows += [row] * len(request.replies)
        return rows

    @property
    def request_ids(self) -> frozenset[str]:
        """Requests and warm requests that have a part in the forward."""
        requests = [reply.request for reply in self.decodes]
        requests += [step.request for step in self.assemblies]
        jobs = [step.job for step in self.colds]
        requests += [request for job in jobs for request in job.requests]
        warm_ids = {run.request_id for job in jobs for run in job.warm_runs}
        return frozenset(request.request_id for request in requests) | warm_ids

    @property
    def is_drawing_only(self) -> bool:
        """Whether nobody has a part in this step but replies that want a token."""
        return not self.assemblies and not self.colds

    @property
    def num_rows(self) -> int:
        """Rows without padding."""
        return (
            len(self.decodes)
            + sum(len(step.stretch.token_ids) for step in self.assemblies)
            + sum(len(step.chunk.token_ids) for step in self.colds)
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """The next token of one reply."""

    token_id: int
    is_finite: bool  # of the logits it was drawn from
    logprobs: TokenLogprobs | None = None
    is_stuck: bool = False  # the logits are finite, and no token is allowed


@dataclass(frozen=True, slots=True)
class FiniteFlags:
    """Of what a forward wrote to be kept: whether every value of it is finite."""

    colds: tuple[bool, ...]  # as `Batch.colds`
    snapshots: tuple[tuple[bool, ...], ...]  # as `Batch.assemblies`, and the snapshots of each


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one forward gave."""

    # replies of `Batch.sampling` and `Batch.held`: each with its token, or with its logits [vocab],
    # since the mask of its grammar was late
    sampled: tuple[tuple[Reply, Sampled], ...]
    held: tuple[tuple[Reply, torch.Tensor], ...]
    finite: FiniteFlags
    step_ms: float
    # as `Batch.assemblies`: empty where none were asked for
    prompt_logprobs: tuple[list[TokenLogprobs], ...] = ()
