"""A request in flight: what it asked for, what it holds, how far it is.

Plain state.  Only the scheduler changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import final

from hypic_sdk.engine.plan import AssemblyPlan, PromptLayout
from hypic_sdk.engine.run_table import KvTable
from hypic_sdk.prompt.segment import SegmentKey
from hypic_sdk.store.lease import Lease
from hypic_sdk.transport.messages import EngineRequest, MissReason


class Phase(Enum):
    """Where a request stands."""

    WAITING = "waiting"  # in the queue, holds nothing
    ASSEMBLING = "assembling"  # admitted; its plan is walked, as far as its entries are there
    DECODING = "decoding"
    ENDED = "ended"


@dataclass(slots=True)
class Clock:
    """When things happened, in seconds of `time.monotonic`; none: not yet."""

    submitted_s: float
    admitted_s: float | None = None
    first_token_s: float | None = None  # or the end of the prompt, when no token is wanted


@dataclass(slots=True, eq=False)
class Grant:
    """What an admitted request holds and how its prompt is put together."""

    lease: Lease
    plan: AssemblyPlan
    kv: KvTable
    state_slot: int  # of its running state
    load_slot: int  # where the first forward loads from: the chain's row, or NO_SLOT
    # entries that were not held at admission, and why; those in `pending` are still being made
    misses: dict[SegmentKey, MissReason]
    pending: set[SegmentKey]
    own_jobs: frozenset[SegmentKey]  # cold jobs that this request began


@final
class Request:
    """One generation between `submit` and its last event."""

    def __init__(
        self,
        message: EngineRequest,
        layout: PromptLayout,
        *,
        uses_segments: bool,
        uses_chains: bool,
        max_tokens: int,
        seed: int,
        now_s: float,
        stamp: int,
    ) -> None:
        self.message = message
        self.layout = layout
        self.uses_segments = uses_segments  # looks up and makes segment entries
        self.uses_chains = uses_chains  # reads and writes chain entries
        self.max_tokens = max_tokens  # clipped to what the context leaves
        self.seed = seed
        self.clock = Clock(now_s)
        self.phase = Phase.WAITING
        self.overtaken = 0  # times that a later request was admitted first
        self.stamp = stamp  # step of its last rows: who waited longest goes first
        self.grant: Grant | None = None
        self.next_unit = 0  # of the plan
        self.position = 0  # tokens that have gone through the model, or were cached
        self.reply: list[int] = []
        self.cold_ms: dict[SegmentKey, float] = {}

    @property
    def request_id(self) -> str:
        """The caller's id."""
        return self.message.request_id

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.layout.prompt.num_tokens

    @property
    def held(self) -> Grant:
        """The grant of an admitted request."""
        assert self.grant is not None, "the request was not admitted"
        return self.grant

    @property
    def deadline_s(self) -> float | None:
        """When the caller stops waiting."""
        timeout_s = self.message.timeout_s
        return None if timeout_s is None else self.clock.submitted_s + timeout_s
