"""The tensors behind the slots: their shapes, dtypes and bytes are what the layout says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hypic_sdk.errors import ConfigError
from hypic_sdk.store.layout import SlabSizes
from hypic_sdk.store.slab import Slabs
from tests.store.small_store import CPU, LAYOUTS, small_layout

SIZES = SlabSizes(11, 7, 13, budget_bytes=0, unused_bytes=0)


def test_shapes_and_dtypes():
    layout = replace(small_layout(), dtype=torch.bfloat16)
    slabs = Slabs.allocate(layout, SIZES, CPU)
    assert slabs.states.shape == (11, 2, 2, 3, 5)
    assert slabs.conv_tails.shape == (11, 2, 3, 7)
    assert slabs.transitions is not None
    assert slabs.transitions.shape == (7, 2, 2, 3, 3)
    assert slabs.keys.shape == slabs.values.shape == (1, 13, 1, 3)
    assert slabs.states.dtype == torch.float32
    assert slabs.transitions.dtype == torch.float16
    assert slabs.conv_tails.dtype == slabs.keys.dtype == slabs.values.dtype == torch.bfloat16


@pytest.mark.parametrize("axes", [(2,), (2, 3), (2, 3, 3)], ids=str)
def test_transitions_have_the_axes_of_their_kind(axes):
    slabs = Slabs.allocate(small_layout(transition_axes=axes), SIZES, CPU)
    assert slabs.transitions is not None
    assert slabs.transitions.shape == (7, 2, *axes)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_bytes_are_rows_and_slots_times_their_bytes(kind):
    layout = LAYOUTS[kind]
    slabs = Slabs.allocate(layout, SIZES, CPU)
    tensors = [slabs.states, slabs.conv_tails, slabs.keys, slabs.values]
    tensors += [] if slabs.transitions is None else [slabs.transitions]
    tensors += [] if slabs.pairs is None else slabs.pairs.tensors()
    assert slabs.num_bytes == sum(tensor.nbytes for tensor in tensors)
    assert slabs.num_bytes == (
        11 * layout.state_row_bytes + 7 * layout.transition_row_bytes + 13 * layout.kv_slot_bytes
    )


def test_memory_that_is_not_there_is_a_setting_to_change():
    sizes = replace(SIZES, num_kv_slots=1 << 50, budget_bytes=1 << 60)
    with pytest.raises(ConfigError, match="budget_bytes") as caught:
        Slabs.allocate(small_layout(), sizes, CPU)
    assert caught.value.details == {"budget_bytes": 1 << 60}


def test_the_refusal_says_what_the_memory_was_for():
    sizes = replace(SIZES, num_kv_slots=1 << 50, budget_bytes=1 << 60)
    with pytest.raises(
        ConfigError, match=f"{1 << 60} bytes for checks: lower max_tokens"
    ) as caught:
        Slabs.allocate(small_layout(), sizes, CPU, purpose="checks: lower max_tokens")
    assert "budget_bytes" not in caught.value.message
