"""What one step runs, and what came of it: the values between scheduler and runner."""

from __future__ import annotations

from dataclasses import dataclass

from hypic_sdk.engine.cold_job import ColdJob
from hypic_sdk.engine.plan import Snapshot
from hypic_sdk.engine.request import Request
from hypic_sdk.engine.run_table import ColdChunk, LiveStretch
from hypic_sdk.transport.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot of this step: the state row that it is saved to."""

    snapshot: Snapshot
    state_slot: int


@dataclass(frozen=True, slots=True)
class AssemblyStep:
    """How far one assembling request gets in this step."""

    request: Request
    stretch: LiveStretch
    next_unit: int  # of the plan, afterwards
    position: int  # afterwards
    snapshots: tuple[KeptSnapshot, ...]


@dataclass(frozen=True, slots=True)
class ColdStep:
    """How far one cold segment gets in this step."""

    job: ColdJob
    chunk: ColdChunk
    is_last: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: decode rows, then stretches, then cold chunks, in the order of rows."""

    decodes: tuple[Request, ...]
    assemblies: tuple[AssemblyStep, ...]
    colds: tuple[ColdStep, ...]

    @property
    def sampling(self) -> list[Request]:
        """Requests that get a token in this step, in the order of their rows."""
        finished = [step.request for step in self.assemblies if step.stretch.wants_logits]
        return [*self.decodes, *finished]

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
    """The next token of one request."""

    token_id: int
    is_finite: bool  # of the logits it was drawn from
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one forward gave."""

    sampled: tuple[Sampled, ...]  # as `Batch.sampling`
    cold_finite: tuple[bool, ...]  # as `Batch.colds`: nothing was written that is not finite
    step_ms: float
