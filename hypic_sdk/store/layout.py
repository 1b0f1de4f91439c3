"""How many bytes a row or a slot takes, and how a byte budget is split into rows and slots.

The store hands out three kinds of slot (design 8, first version): state rows, transition rows and
KV slots of one token.  Each kind has its own slab, is counted, refused and evicted apart, and
serves segment entries, chain entries and requests alike.

A segment entry takes a state row and, where its transition is stored, a transition row.  With pairs
in 8 bits it takes a transition row alone, which holds all of its pair and its conv tail; state rows
are then running states and chain entries only, which stay as precise as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from hypic_sdk.config import MIB, StoreConfig
from hypic_sdk.errors import ConfigError
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.models.base import ModelSpec, TransitionKind

NO_SLOT = -1
"""The transition slot of an entry whose transition follows from its length (as in the ops)."""

ROWS_PER_REQUEST = 2
"""State rows that the split expects for one request: its running state and one chain entry."""

# how many axes of size K stand behind [X, J, H]; none: nothing is stored
_KEY_AXES: Mapping[TransitionKind, int | None] = MappingProxyType(
    {
        TransitionKind.CONSTANT: None,
        TransitionKind.SCALAR: 0,
        TransitionKind.DIAGONAL: 1,
        TransitionKind.DENSE: 2,
    }
)


@dataclass(frozen=True, slots=True)
class SlabSizes:
    """How many rows and slots the slabs have, and what of the budget no slab could use.

    `budget_bytes` is what the slabs really take: the sum that `Store.usage` always adds up to.
    """

    num_state_rows: int  # S
    num_transition_rows: int  # X, 0 when a pair's transition follows from its length
    num_kv_slots: int  # P, 0 without full attention
    budget_bytes: int
    unused_bytes: int


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Shapes and dtypes of what is cached, for one model in one precision."""

    num_linear: int  # J
    num_heads: int  # H
    key_size: int  # K
    value_size: int  # V
    transition_axes: tuple[int, ...] | None  # axes of a row behind [J]: (H,), (H, K), (H, K, K)
    conv_rows: int  # W-1
    conv_channels: int  # C
    num_attention: int  # A
    num_kv_heads: int  # G
    head_size: int  # E
    dtype: torch.dtype  # of conv tails, keys and values
    state_dtype: torch.dtype
    transition_dtype: torch.dtype
    has_int8_pairs: bool = False

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        state_dtype: torch.dtype,
        pair: str,
    ) -> StoreLayout:
        """The layout for a model.

        Args:
            dtype: what the model runs in: conv tails, keys and values.
            state_dtype: running states, and end states unless they are in 8 bits (fp32, or fp64
                when the model runs in fp64).
            pair: one of `config.PAIRS`: the dtype of dense transitions, or `int8` for both; scalar
                and diagonal transitions are log-decays in the state's dtype.
        """
        linear, attention = spec.linear, spec.attention
        key_axes = _KEY_AXES[linear.transition]
        has_kv = attention is not None and spec.num_attention > 0
        return cls(
            num_linear=spec.num_linear,
            num_heads=linear.num_heads,
            key_size=linear.key_size,
            value_size=linear.value_size,
            transition_axes=(
                None if key_axes is None else (linear.num_heads, *[linear.key_size] * key_axes)
            ),
            conv_rows=linear.conv_width - 1 if linear.conv_channels else 0,
            conv_channels=linear.conv_channels,
            num_attention=spec.num_attention if has_kv else 0,
            num_kv_heads=attention.num_kv_heads if attention is not None else 0,
            head_size=attention.head_size if attention is not None else 0,
            dtype=dtype,
            state_dtype=state_dtype,
            transition_dtype=(
                getattr(torch, pair) if linear.transition is TransitionKind.DENSE else state_dtype
            ),
            has_int8_pairs=pair == "int8",
        )

    @property
    def state_row_bytes(self) -> int:
        """One state row: the states and conv tails of all linear layers."""
        state = self.num_heads * self.key_size * self.value_size * self.state_dtype.itemsize
        return self.num_linear * (state + self._tail_bytes)

    @property
    def transition_row_bytes(self) -> int:
        """One transition row: all linear layers; 0 when nothing is stored."""
        if self.has_int8_pairs:
            pairs = self.pair_rows((1, self.num_linear), torch.device("meta"))
            return pairs.num_bytes + self.num_linear * self._tail_bytes
        if self.transition_axes is None:
            return 0
        return self.num_linear * math.prod(self.transition_axes) * self.transition_dtype.itemsize

    @property
    def _tail_bytes(self) -> int:
        return self.conv_rows * self.conv_channels * self.dtype.itemsize

    def pair_rows(self, lead: tuple[int, int], device: torch.device) -> Int8Pairs:
        """Memory for pairs in 8 bits, not cleared.

        Args:
            lead: rows and linear layers.
        """
        shape = (self.num_heads, self.key_size, self.value_size)
        axes = self.transition_axes
        return Int8Pairs.allocate(lead, shape, axes, self.state_dtype, device)

    @property
    def kv_slot_bytes(self) -> int:
        """One token's keys and values in all attention layers; 0 without any."""
        return 2 * self.num_attention * self.num_kv_heads * self.head_size * self.dtype.itemsize

    @property
    def keeps_states(self) -> bool:
        """Whether a segment entry has a state row."""
        return not self.has_int8_pairs

    @property
    def keeps_transitions(self) -> bool:
        """Whether a segment entry has a transition row."""
        return self.has_int8_pairs or self.transition_axes is not None

    @property
    def keeps_kv(self) -> bool:
        """Whether a token has a KV slot."""
        return self.kv_slot_bytes > 0

    def segment_bytes(self, interior_tokens: int) -> int:
        """What one segment entry takes."""
        state = self.state_row_bytes if self.keeps_states else 0
        return state + self.transition_row_bytes + interior_tokens * self.kv_slot_bytes

    def least_bytes(self, config: StoreConfig) -> int:
        """What one segment of the expected length takes, and one request over it."""
        expected = config.expected_segment_tokens
        request = self.state_row_bytes + expected * self.kv_slot_bytes
        return self.segment_bytes(expected) + request

    def split(self, config: StoreConfig) -> SlabSizes:
        """Split a budget at start by `expected_segment_tokens` and `segments_per_request`.

        The budget is cut into equal shares, one for as many segments of the expected length as a
        request has (state row, transition row, KV of the interior each) and one request over them:
        its `ROWS_PER_REQUEST` state rows, and KV for the same tokens once more, because a request
        (and the chain entries it leaves) has its keys rotated to its own positions.  Rows are
        rounded down, and all that remains goes to KV slots (to state rows where there are none).

        Raises:
            ConfigError: the budget can not hold one segment and one request over it.
        """
        expected, per_request = config.expected_segment_tokens, config.segments_per_request
        state, kv = self.state_row_bytes, self.kv_slot_bytes
        least = self.least_bytes(config)
        if config.budget_bytes < least:
            raise ConfigError(
                f"budget_bytes {config.budget_bytes} can not hold one segment of {expected} tokens "
                f"(expected_segment_tokens) and one request over it: at least {least} bytes, which "
                f"is --cache-mib {-(-least // MIB)}, or a smaller --segment-tokens",
                budget_bytes=config.budget_bytes,
                least_bytes=least,
            )
        share = (
            per_request * (self.segment_bytes(expected) + expected * kv) + ROWS_PER_REQUEST * state
        )
        if share == 0:
            raise ConfigError("the model caches nothing: no linear and no attention layer")
        segments = max(1, per_request * config.budget_bytes // share)
        request_rows = max(1, ROWS_PER_REQUEST * config.budget_bytes // share)
        return self.sizes(
            num_state_rows=request_rows + (segments if self.keeps_states else 0),
            num_transition_rows=segments if self.keeps_transitions else 0,
            budget_bytes=config.budget_bytes,
        )

    def holds(
        self, config: StoreConfig, state_rows: int, transition_rows: int, kv_slots: int
    ) -> bool:
        """Whether a budget's split gives at least so many slots of each kind."""
        if config.budget_bytes < self.least_bytes(config):
            return False
        sizes = self.split(config)
        return (
            sizes.num_state_rows >= state_rows
            and sizes.num_transition_rows >= transition_rows
            and sizes.num_kv_slots >= kv_slots
        )

    def budget_for(
        self, config: StoreConfig, state_rows: int, transition_rows: int, kv_slots: int
    ) -> int:
        """A budget whose split gives at least so many slots of each kind; at most 1 % too large."""

        def holds(budget_bytes: int) -> bool:
            larger = replace(config, budget_bytes=budget_bytes)
            return self.holds(larger, state_rows, transition_rows, kv_slots)

        small, large = config.budget_bytes, 2 * config.budget_bytes
        while not holds(large):
            small, large = large, 2 * large
        while large - small > large // 100:
            middle = (small + large) // 2
            small, large = (small, middle) if holds(middle) else (middle, large)
        return large

    def sizes(
        self, *, num_state_rows: int, num_transition_rows: int, budget_bytes: int
    ) -> SlabSizes:
        """Give what the rows leave of a budget to KV slots, or else to state rows."""
        rest = budget_bytes - num_state_rows * self.state_row_bytes
        rest -= num_transition_rows * self.transition_row_bytes
        assert rest >= 0, f"rows alone take {-rest} bytes more than the budget"
        num_kv_slots = 0
        if self.keeps_kv:
            num_kv_slots, rest = divmod(rest, self.kv_slot_bytes)
        else:
            more, rest = divmod(rest, self.state_row_bytes)
            num_state_rows += more
        return SlabSizes(
            num_state_rows, num_transition_rows, num_kv_slots, budget_bytes - rest, rest
        )
