"""Control messages besides requests and events: cancel, finish, questions and their answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from hypic_sdk.config import EngineConfig
from hypic_sdk.prompt.segment import PromptPart, SegmentId


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End a request; its last event still comes."""

    request_id: str


@dataclass(frozen=True, slots=True)
class FinishRequest:
    """End one reply of a request as if an end token had come: the caller has what it wanted."""

    request_id: str
    reply_index: int = 0


@dataclass(frozen=True, slots=True)
class RequestsBegun:
    """The engine is about to run these for the first time: if it dies, they may be why."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """A worker of another host wants to be one of the router's.  Answered by Welcome or Refused."""

    place: str  # names it in metrics, whichever process is there
    version: str  # of this package: messages of another are not understood


@dataclass(frozen=True, slots=True)
class Welcome:
    """A worker is to load its model, and say that it is ready."""

    worker: str  # its id: used once
    config: EngineConfig  # as all workers have it


@dataclass(frozen=True, slots=True)
class Refused:
    """A worker is not, or no longer, one of the router's: it may end, and join anew."""

    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Leave:
    """A worker of another host ends."""

    worker: str


@dataclass(frozen=True, slots=True)
class PeerHere:
    """Where another worker takes messages about entries."""

    worker: str
    endpoint: str  # tcp://...


@dataclass(frozen=True, slots=True)
class Alive:
    """A sign of life, about once a second, with what a worker of several counts.

    One that is alone has no name.

    Routers give workers of other hosts such signs as well.
    """

    worker: str
    num_fetched: int = 0  # entries that came from other workers
    num_not_fetched: int = 0  # entries that were asked for and did not come
    fetched_bytes: int = 0
    endpoint: str = ""  # where it takes messages about entries, of several hosts


@dataclass(frozen=True, slots=True)
class EntryName:
    """An entry as a router knows it: the text, and whose it is."""

    namespace: str
    segment_id: SegmentId


@dataclass(frozen=True, slots=True)
class EntriesChanged:
    """What one worker of several holds now that it did not, and holds no more."""

    worker: str
    made: tuple[EntryName, ...] = ()
    gone: tuple[EntryName, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Another worker is gone: whatever was asked of it does not come."""

    worker: str


class Question(Enum):
    """What an engine can be asked between two of its steps."""

    PROBE = "probe"  # which of `parts` are held -> list of bool
    DELETE = "delete"  # drop the entries of `parts` and every chain that contains one
    # bytes of the store by state; what else is switched on, under its name: "shadow" (live checks),
    # "graphs", "steps" (which overlapped) -> dict
    USAGE = "usage"
    LOOK = "look"  # what is there of `parts` -> list of [Held, bytes, whether pinned]
    PIN = "pin"  # keep the entries of `parts`, also those still to be made; PinBudgetExhausted
    UNPIN = "unpin"
    PRIORITY = "priority"  # `number` 0..99 of `parts`: lower ones are evicted first
    LIMIT = "limit"  # most bytes that a namespace's entries may hold: `number`
    HOLDINGS = "holdings"  # what a namespace holds in the pools -> dict
    DIGESTS = "digests"  # of one worker's entries of `parts` -> list of SHA-256, none: not held
    CLEAR = "clear"  # drop all entries of the namespace -> how many
    RESUME = "resume"  # reuse again, if live checks switched it off


class Held(Enum):
    """What there is of a segment in the public pool."""

    NOT_KEPT = "not_kept"  # too short, or the engine's mode keeps no segments
    COLD = "cold"  # never made, or deleted
    EVICTED = "evicted"  # was there, and was dropped for room
    FILLING = "filling"  # being computed
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class EntryLook:
    """What there is of one segment, and the bytes that its entry takes (or would take)."""

    held: Held
    num_bytes: int = 0
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; the answer carries the same `ask_id`."""

    ask_id: int
    question: Question
    parts: tuple[PromptPart, ...] = ()
    namespace: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question: a plain value, or an error payload."""

    ask_id: int
    value: Any = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine has loaded its model and takes requests."""

    model_fingerprint: str
    vocab_size: int
    max_context_tokens: int
    eos_token_ids: tuple[int, ...]
    conv_width: int  # of the short convs: what a seam must cover
    load_s: float
    # what bits depend on besides model, tokens and settings; empty: nothing is computed
    compute_fingerprint: str = ""
    dtype: str = ""  # of the model


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine could not start; it ends after this message."""

    error: dict[str, Any]
