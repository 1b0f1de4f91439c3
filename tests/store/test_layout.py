"""Bytes of rows and slots, and the split of a budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.config import StoreConfig
from hypic_sdk.errors import ConfigError
from hypic_sdk.models.base import (
    AttentionShape,
    LayerKind,
    LinearShape,
    ModelSpec,
    TransitionKind,
)
from hypic_sdk.store.layout import StoreLayout
from tests.store.small_store import LAYOUTS, small_layout

# the linear and attention layers of Qwen3.5-35B-A3B (style 3.5)
LARGE = ModelSpec(
    layers=(*[LayerKind.LINEAR] * 30, *[LayerKind.ATTENTION] * 10),
    linear=LinearShape(32, 128, 128, TransitionKind.DENSE, conv_channels=8192, conv_width=4),
    attention=AttentionShape(16, 2, 256, RotarySpec(1e7, 64)),
    vocab_size=248_320,
    max_context_tokens=262_144,
)


def layout_of(spec, dtype=torch.bfloat16, state_dtype=torch.float32, pair="float16"):
    return StoreLayout.of(spec, dtype=dtype, state_dtype=state_dtype, pair=pair)


def with_transition(kind):
    return replace(LARGE, linear=replace(LARGE.linear, transition=kind))


def test_bytes_of_a_large_model():
    layout = layout_of(LARGE)
    mib = 1024 * 1024
    assert layout.state_row_bytes == 60 * mib + 30 * 3 * 8192 * 2
    assert layout.transition_row_bytes == 30 * mib
    assert layout.kv_slot_bytes == 10 * 2 * 1024
    # the target of design 13: at most 112 MiB for 1k tokens, seams left out
    assert layout.segment_bytes(1024 - 8) <= 112 * mib


def test_bytes_of_a_large_model_with_pairs_in_8_bits():
    layout = layout_of(LARGE, pair="int8")
    mib, matrix, row = 1024 * 1024, 30 * 32 * 128 * 128, 30 * 32 * 128
    assert layout.state_row_bytes == layout_of(LARGE).state_row_bytes, "of a running state"
    # T and S, a scale of each row of both, the diagonal of T; the conv tail
    assert layout.transition_row_bytes == 2 * matrix + 3 * 2 * row + 30 * 3 * 8192 * 2
    assert layout.segment_bytes(1000) == layout.transition_row_bytes + 1000 * 20 * 1024
    # the target of design 13: at most 52 MiB for 1k tokens, seams left out
    assert layout.segment_bytes(1024 - 8) <= 52 * mib
    assert not layout.keeps_states


def test_a_budget_holds_half_as_many_segments_again_with_pairs_in_8_bits():
    """With room for their keys beside requests, which need as much as ever."""
    config = StoreConfig(budget_bytes=60 << 30, expected_segment_tokens=1024)
    rows = {
        pair: layout_of(LARGE, pair=pair).split(config).num_transition_rows
        for pair in ("float16", "int8")
    }
    assert rows["int8"] > 1.5 * rows["float16"] > 300


@pytest.mark.parametrize("kind", TransitionKind)
def test_in_8_bits_every_pair_has_a_row(kind):
    layout = layout_of(with_transition(kind), pair="int8")
    log_bytes = {TransitionKind.SCALAR: 32 * 4, TransitionKind.DIAGONAL: 32 * 128 * 4}.get(kind, 0)
    dense_bytes = 32 * 128 * (128 + 2 + 2) if kind is TransitionKind.DENSE else 0
    state_bytes = 32 * 128 * (128 + 2) + 3 * 8192 * 2
    assert layout.keeps_transitions
    assert layout.transition_row_bytes == 30 * (state_bytes + log_bytes + dense_bytes)


@pytest.mark.parametrize(
    ("kind", "axes", "dtype"),
    [
        (TransitionKind.CONSTANT, None, None),
        (TransitionKind.SCALAR, (32,), torch.float32),
        (TransitionKind.DIAGONAL, (32, 128), torch.float32),
        (TransitionKind.DENSE, (32, 128, 128), torch.float16),
    ],
)
def test_what_is_kept_of_a_transition(kind, axes, dtype):
    layout = layout_of(with_transition(kind))
    assert layout.transition_axes == axes
    assert layout.keeps_transitions == (axes is not None)
    if axes is None:
        assert layout.transition_row_bytes == 0
    else:
        assert layout.transition_dtype == dtype


def test_log_decays_are_kept_as_precisely_as_states():
    layout = layout_of(with_transition(TransitionKind.DIAGONAL), state_dtype=torch.float64)
    assert layout.transition_dtype == torch.float64


def test_without_attention_or_conv_their_shares_are_zero():
    spec = replace(
        LARGE,
        layers=(LayerKind.LINEAR,) * 3,
        attention=None,
        linear=replace(LARGE.linear, conv_channels=0, conv_width=1),
    )
    layout = layout_of(spec)
    assert layout.kv_slot_bytes == 0
    assert not layout.keeps_kv
    assert layout.state_row_bytes == 3 * 32 * 128 * 128 * 4


@given(
    kind=st.sampled_from(sorted(LAYOUTS)),
    budget_bytes=st.integers(1, 2_000_000),
    expected=st.integers(1, 300),
)
def test_a_split_uses_the_budget_up_and_has_room_for_a_segment_and_a_request(
    kind, budget_bytes, expected
):
    layout = LAYOUTS[kind]
    config = StoreConfig(budget_bytes=budget_bytes, expected_segment_tokens=expected)
    state, transition = layout.state_row_bytes, layout.transition_row_bytes
    kv = layout.kv_slot_bytes
    least = (2 if layout.keeps_states else 1) * state + transition + 2 * expected * kv
    if budget_bytes < least:
        with pytest.raises(ConfigError) as caught:
            layout.split(config)
        assert caught.value.details == {"budget_bytes": budget_bytes, "least_bytes": least}
        return
    sizes = layout.split(config)
    taken = (
        sizes.num_state_rows * state
        + sizes.num_transition_rows * transition
        + sizes.num_kv_slots * kv
    )
    assert taken == sizes.budget_bytes
    assert sizes.budget_bytes + sizes.unused_bytes == budget_bytes
    assert 0 <= sizes.unused_bytes < (kv or state)
    num_segments = sizes.num_transition_rows if layout.keeps_transitions else 1
    assert num_segments >= 1
    # a row is left for a request when every transition row is in use
    assert sizes.num_state_rows > (num_segments if layout.keeps_states else 0)
    if layout.keeps_kv:
        assert sizes.num_kv_slots >= 2 * expected * max(1, num_segments)


@given(
    budget_bytes=st.integers(30_000, 10_000_000),
    expected=st.integers(1, 300),
    int8=st.booleans(),
)
def test_rows_follow_the_shares(budget_bytes, expected, int8):
    """Four segments to two rows for requests, and KV for each segment twice."""
    layout = small_layout(int8=int8)
    config = StoreConfig(budget_bytes=budget_bytes, expected_segment_tokens=expected)
    sizes = layout.split(config)
    segments = sizes.num_transition_rows
    request_rows = sizes.num_state_rows - (0 if int8 else segments)
    assert segments // 2 <= request_rows <= segments // 2 + 1
    share_bytes = (
        4 * layout.segment_bytes(expected)
        + 2 * layout.state_row_bytes
        + 4 * expected * layout.kv_slot_bytes
    )
    assert segments in {max(1, n) for n in (4 * budget_bytes // share_bytes,)}


def test_longer_segments_mean_fewer_rows_and_more_kv():
    layout = small_layout()
    short, long = (
        layout.split(StoreConfig(budget_bytes=10**6, expected_segment_tokens=tokens))
        for tokens in (10, 1000)
    )
    assert short.num_transition_rows > long.num_transition_rows
    assert short.num_kv_slots < long.num_kv_slots


def test_rows_beyond_the_budget_are_a_bug():
    layout = small_layout()
    with pytest.raises(AssertionError, match="more than the budget"):
        layout.sizes(
            num_state_rows=2,
            num_transition_rows=0,
            budget_bytes=2 * layout.state_row_bytes - 1,
        )
