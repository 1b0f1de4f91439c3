"""What the doctor found, as plain values; `to_json` is what `hypic doctor --json` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Identity:
    """What the folder says it is."""

    folder: str
    model_type: str
    family: str  # of its linear layers
    transition: str  # form of a stretch's transition: constant, scalar, diagonal or dense
    num_layers: int
    num_linear: int
    num_attention: int
    num_heads: int  # H, state heads of a linear layer
    key_size: int  # K
    value_size: int  # V
    num_query_heads: int | None  # of an attention layer; none without any
    num_kv_heads: int | None
    head_size: int | None
    more: Mapping[str, str]  # what the model type itself tells: width, experts
    vocab_size: int
    max_context_tokens: int
    end_token_ids: tuple[int, ...]
    num_parameters: int
    stored_bytes: Mapping[str, int]  # of the tensors that are used, by stored dtype
    num_shards: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and in which arithmetic it would run."""

    device: str
    device_name: str
    dtype: str
    state_dtype: str
    pair: str
    determinism: str


@dataclass(frozen=True, slots=True)
class OpChoice:
    """An op, what runs it here, and why."""

    op: str
    implementation: str
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """A segment of so many tokens in the public pool."""

    num_tokens: int
    interior_tokens: int  # what is kept of it; 0: it is computed in place, and nothing is kept
    num_bytes: int
    fits: int  # so many at once, while no request runs


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Weights, and what the cache budget holds."""

    weights_bytes: int
    available_bytes: int | None  # on the device now; none where nobody says
    budget_bytes: int
    state_row_bytes: int
    transition_row_bytes: int
    kv_token_bytes: int
    num_state_rows: int
    num_transition_rows: int
    num_kv_tokens: int
    # shorter ones are not kept, by settings, seam and conv together; none: the mode keeps none
    min_segment_tokens: int | None
    seam: str
    segments: tuple[SegmentCost, ...]

    @property
    def fits(self) -> bool:
        """Whether weights and cache find room on the device now, as far as anybody says."""
        needed = self.weights_bytes + self.budget_bytes
        return self.available_bytes is None or needed <= self.available_bytes


@dataclass(frozen=True, slots=True)
class LawCheck:
    """A law on random inputs of this model's shapes."""

    law: str
    error: float  # relative
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the error is within the bound (a NaN is not)."""
        return self.error <= self.bound


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """The tokenizer beside the model."""

    vocab_size: int
    num_control_tokens: int  # added tokens: no text of a caller can make one
    bos_token_id: int | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What the chat template can do, found by rendering."""

    roles: tuple[str, ...]  # that it takes besides user and assistant
    segments_in: tuple[str, ...]  # roles whose messages can hold a segment
    thinking_switch: bool  # `enable_thinking` changes the prompt
    opens_thinking: bool  # a reply begins inside of <think>
    shows_reasoning: bool  # a reply's reasoning, within the turn that it belongs to
    drops_earlier_reasoning: bool
    tools: bool  # shows tool schemas
    call_format: str | None  # json or xml, where it shows a reply's tool calls
    message_borders: bool  # chains can be kept at the ends of messages
    ends_reply_with: str | None


@dataclass(frozen=True, slots=True)
class SamplingFacts:
    """What applies where a caller says nothing, out of generation_config.json."""

    temperature: float  # 0: the likeliest token each time
    top_k: int  # 0: all
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    max_tokens: int
    min_tokens: int


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All of it."""

    identity: Identity
    placement: Placement
    tokenizer: TokenizerFacts
    template: TemplateFacts | None  # none: plain prompts only
    sampling: SamplingFacts
    ops: tuple[OpChoice, ...]
    memory: MemoryPlan
    laws: tuple[LawCheck, ...]
    notes: tuple[str, ...]  # what works and may still surprise

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values."""
        laws = [{**dataclasses.asdict(law), "holds": law.holds} for law in self.laws]
        return {**dataclasses.asdict(self), "laws": laws}
