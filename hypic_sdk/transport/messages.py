"""What goes to an engine and what comes back.  Frozen dataclasses of plain values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hypic_sdk.prompt.segment import PromptPart, SegmentedPrompt, SegmentId


class GrammarKind(Enum):
    """What a reply must match."""

    JSON = "json"  # any JSON object; the source is empty
    JSON_SCHEMA = "json_schema"  # the source is the schema, as JSON text
    LARK = "lark"  # the source is a Lark grammar
    REGEX = "regex"


@dataclass(frozen=True, slots=True)
class Grammar:
    """The language that a reply is held to, token by token."""

    kind: GrammarKind
    source: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen: `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 are off."""

    max_tokens: int = 256
    min_tokens: int = 0  # so many before an end token or a stop token may come
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0  # least probability, as a share of the likeliest token's; 0 is off
    repetition_penalty: float = 1.0  # divides logits of tokens seen in prompt or reply; 1 is off
    presence_penalty: float = 0.0  # taken off once from each token of the reply so far
    frequency_penalty: float = 0.0  # taken off for each time that it stands there
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, what is added to its logit
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # none: off; n: the chosen token's and the n best
    prompt_logprobs: int | None = None  # the same of the prompt's tokens; with `reuse` off only
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """A hint: another worker holds a segment's entry, or is the one that is to make it."""

    segment_id: SegmentId
    worker: str


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation.  `max_tokens` 0 prepares everything and answers without a token."""

    request_id: str
    prompt: SegmentedPrompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    namespace: str = ""  # tenant's share of the cache namespace
    reuse: bool = True  # false is mode "off": reads no entry, writes none
    session_id: str | None = None
    timeout_s: float | None = None
    num_replies: int = 1  # so many replies to one prompt, which is prepared once
    placements: tuple[Placement, ...] = ()  # a router's, never a caller's


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """Put segments into the public pool ahead of need."""

    request_id: str
    segments: tuple[PromptPart, ...]  # role inner, with ids
    namespace: str = ""
    background: bool = False  # yields to requests
    for_request: bool = False  # a request of another worker waits for it: before all other warming


class SegmentStatus(Enum):
    """What became of one segment of a request."""

    HIT = "hit"  # its entry was used
    PREFIX = "prefix"  # covered by a chain entry
    COLD = "cold"  # computed by this request, or waited for
    LIVE = "live"  # computed in place, nothing kept (reason says why)
    TRAILING = "trailing"  # stands last: live, neither looked up nor kept


class MissReason(Enum):
    """Why a segment was not a hit."""

    NEVER_WARMED = "never_warmed"
    IN_FLIGHT = "in_flight"  # another request or a warm job was computing it; this one waited
    EVICTED = "evicted"
    BELOW_MIN_TOKENS = "below_min_tokens"
    ALL_SEAM = "all_seam"  # its seams leave no interior that could be kept
    POLICY_OFF = "policy_off"  # mode off, or a mode without segments
    CAPACITY = "capacity"


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment of one request: status, why, where it lay, what it cost."""

    segment_id: SegmentId
    message_index: int
    content_index: int
    status: SegmentStatus
    miss_reason: MissReason | None
    tier: str | None  # gpu, peer, host or disk, of a hit; the CPU engine's memory is called gpu too
    start: int  # global position of its first token
    num_tokens: int
    reused_tokens: int  # tokens that were not computed in this request
    seam_tokens: int  # tokens recomputed in place
    cold_ms: float  # spent on computing it, or (`in_flight`) waited for it; 0 for a hit


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What one request's prompt cost.

    prompt = chain + segment (gaps) + live; cold tokens come on top (computed for an entry, then
    reused), so `computed` = live + cold.
    """

    prompt_tokens: int
    chain_tokens: int  # covered by a chain entry (3.3)
    segment_tokens: int  # interiors taken from entries, also those made by this request
    live_tokens: int  # went through the model during assembly, seams included
    seam_tokens: int
    cold_tokens: int  # tokens of segments that this request computed as 3.2
    cached_tokens: int  # chain + interiors that were hits: prompt tokens not computed now
    exact: bool  # no gap stands after other tokens
    segments: tuple[SegmentReport, ...]
    queue_ms: float
    cold_ms: float
    ttft_ms: float
    degraded: str | None = None  # a code of what was asked for and left undone


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of the chosen token, and of the best ones (token id, logprob), best first."""

    token_id: int
    logprob: float
    rank: int  # of the chosen one among all ids; the likeliest has 1
    top: tuple[tuple[int, float], ...] = ()


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"  # an end token, or the caller had what it wanted
    LENGTH = "length"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One step of one reply of a request.

    Each reply ends with exactly one event whose `finish_reason` is set; the one with no
    `replies_left` ends the request, with the report (if the prompt was processed) or the error
    payload (see `errors.HypicError.to_payload`).  An error ends all replies at once.  The end token
    itself is not in `token_ids`.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    report: EngineReport | None = None
    error: dict[str, Any] | None = None
    reply_index: int = 0
    replies_left: int = 0  # replies of the request that have not ended; read with finish_reason
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # from the second token of the prompt on


@dataclass(frozen=True, slots=True)
class WarmEvent:
    """Progress of a warm request: one event per segment, then one with `done` set."""

    request_id: str
    segment_id: SegmentId | None = None
    status: SegmentStatus | None = None  # HIT: was there; COLD: computed; LIVE: is not kept
    num_tokens: int = 0
    cold_ms: float = 0.0
    error: dict[str, Any] | None = None
    done: bool = False
