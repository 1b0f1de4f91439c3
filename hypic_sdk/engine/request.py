"""A request in flight: what it asked for, what it holds, how far it is.

Plain state.  Only the scheduler changes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import final

import torch

from hypic_sdk.engine.grammars import Compilation, ReplyGrammar
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.plan import AssemblyPlan, PromptLayout
from hypic_sdk.prompt.segment import SegmentKey
from hypic_sdk.store.lease import Lease
from hypic_sdk.transport.messages import (
    EngineRequest,
    FinishReason,
    MissReason,
    SamplingParams,
    TokenLogprobs,
)


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
    kv: KvTable  # of the prompt, and of the first reply behind it
    state_slot: int  # of its running state, and the first reply's
    load_slot: int  # where the first forward loads from: the chain's row, or NO_SLOT
    # entries that were not held at admission, and why; those in `pending` are still being made
    misses: dict[SegmentKey, MissReason]
    pending: set[SegmentKey]
    own_jobs: frozenset[SegmentKey]  # cold jobs that this request began


def reply_seed(seed: int, index: int) -> int:
    """The seed of one of several replies: the request's own for the first, apart for the others."""
    if index == 0:
        return seed
    digest = hashlib.sha256(f"hypic.reply\0{seed}\0{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


@dataclass(slots=True, eq=False)
class TokenCounts:
    """What was said before, as penalties ask it."""

    in_prompt_V: torch.Tensor  # [vocab] bool, shared by all replies
    counts_V: torch.Tensor  # [vocab] int32
    num_counted: int = 0  # tokens of the reply that are in `counts_V`


@final
class Reply:
    """One reply of a request: what was drawn, and where it goes on.  Plain state."""

    def __init__(self, request: Request, index: int) -> None:
        self.request = request
        self.index = index
        self.seed = reply_seed(request.seed, index)
        self.token_ids: list[int] = []
        self.position = request.num_prompt_tokens  # tokens that went through the model, or cached
        self.finish: FinishReason | None = None
        self.counts: TokenCounts | None = None  # made when a penalty first asks
        self.grammar: ReplyGrammar | None = None  # set when the request is admitted
        # [vocab] of a token that is not drawn yet: the mask of its grammar is late
        self.held_logits: torch.Tensor | None = None
        # of the latest forward: the row of a token that was drawn and is not in `token_ids` yet
        self.pending_row: int | None = None
        self._memory: tuple[int, KvTable] | None = None

    @property
    def sampling(self) -> SamplingParams:
        """How its tokens are chosen."""
        return self.request.message.sampling

    @property
    def num_drawn(self) -> int:
        """Tokens that were drawn, also one that the host has not read."""
        return len(self.token_ids) + (self.pending_row is not None)

    @property
    def goes_on(self) -> bool:
        """Whether a further token may come, as far as their number tells."""
        return self.finish is None and self.num_drawn < self.request.max_tokens

    @property
    def is_over(self) -> bool:
        """Whether it ended, by itself or with its request."""
        return self.finish is not None or self.request.phase is Phase.ENDED

    @property
    def is_kept(self) -> bool:
        """Whether its running state is kept when it ends: it must not be past the end then."""
        return self.request.uses_chains and self.request.message.session_id is not None

    def settle(self, state_slot: int, kv: KvTable) -> None:
        """The request was admitted: where the running state lies, and the keys."""
        self._memory = (state_slot, kv)

    @property
    def state_slot(self) -> int:
        """Row of its running state."""
        assert self._memory is not None, "the request was not admitted"
        return self._memory[0]

    @property
    def kv(self) -> KvTable:
        """KV slots by position: the prompt's, which all replies share, and its own."""
        assert self._memory is not None, "the request was not admitted"
        return self._memory[1]


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
        compilation: Compilation | None = None,
        degraded: str | None = None,
    ) -> None:
        self.message = message
        self.layout = layout
        self.uses_segments = uses_segments  # looks up and makes segment entries
        self.uses_chains = uses_chains  # reads and writes chain entries
        self.max_tokens = max_tokens  # clipped to what the context leaves
        self.seed = seed
        self.compilation = compilation  # of its grammar, which it waits for
        self.degraded = degraded  # what was asked for and is left undone, as reports say it
        self.clock = Clock(now_s)
        self.phase = Phase.WAITING
        self.overtaken = 0  # times that a later request was admitted first
        self.stamp = stamp  # step of its last rows: who waited longest goes first
        self.grant: Grant | None = None
        self.next_unit = 0  # of the plan
        self.position = 0  # tokens of the prompt that went through the model, or were cached
        self.replies = tuple(Reply(self, index) for index in range(message.num_replies))
        self.cold_ms: dict[SegmentKey, float] = {}
        self.pulled: set[SegmentKey] = set()  # entries that another worker held
        self.made_elsewhere: set[SegmentKey] = set()  # entries that another worker made for it
        self.prompt_logprobs: list[TokenLogprobs] = []  # not told yet

    @property
    def request_id(self) -> str:
        """The caller's id."""
        return self.message.request_id

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.layout.prompt.num_tokens

    @property
    def reply_kv_tokens(self) -> int:
        """KV slots of one reply: its last token is never fed, so its keys need none."""
        return max(0, self.max_tokens - 1)

    @property
    def open_replies(self) -> list[Reply]:
        """Those that have not ended."""
        return [reply for reply in self.replies if reply.finish is None]

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
