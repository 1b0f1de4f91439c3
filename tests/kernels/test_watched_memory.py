"""What watches the kernels of these tests sees an element that is not theirs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton.runtime.errors import InterpreterError
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.kernels.watched_memory import Held, watched


@triton.jit
def copy(source_ptr, out_ptr, count, step, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out_ptr + o, tl.load(source_ptr + o * step, o < count, other=0), o < count)


@triton.jit
def copy_tile(rows, out_ptr, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    b_rows = rows.load([0, 0])
    tl.store(out_ptr + o[:, None] * BLOCK + o[None, :], b_rows)


def copied(source: torch.Tensor, out: torch.Tensor, count: int, step: int = 1) -> None:
    copy[(1,)](source, out, count, step, BLOCK=16)


def by_hand(view: torch.Tensor) -> set[int]:
    """Each element's address."""
    places = torch.arange(view.untyped_storage().nbytes() // view.itemsize)
    numbers = places.as_strided(view.shape, view.stride(), view.storage_offset())
    start = view.untyped_storage().data_ptr()
    return {start + view.itemsize * number for number in numbers.flatten().tolist()}


@given(
    dtype=st.sampled_from([torch.int8, torch.int16, torch.float64]),
    axes=st.permutations(range(3)),
    cuts=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 3)), min_size=3, max_size=3
    ),
    repeats=st.integers(1, 2),
)
def test_addresses_are_those_of_a_views_elements(dtype, axes, cuts, repeats) -> None:
    """Of slices, turned and expanded; none where there is no element."""
    whole = torch.zeros(5, 3, 4, dtype=dtype)
    view = whole[tuple(slice(*cut) for cut in cuts)].permute(axes)
    views = [view[None].expand(repeats, *view.shape), whole[2, 2]]
    held = Held(views)
    start = whole.data_ptr()
    around = np.arange(start - 64, start + whole.nbytes + 64, whole.itemsize, dtype=np.uint64)
    assert set(around[held.have(around)].tolist()) == by_hand(view) | by_hand(whole[2, 2])


def test_a_kernel_that_keeps_to_its_arguments_is_let_through() -> None:
    source, out = torch.arange(12.0)[1:10:2], torch.zeros(5)
    copied(source, out, 5, step=2)
    assert torch.equal(out, source)
    whole, tile = torch.arange(64.0).view(4, 16), torch.zeros(16, 16)
    copy_tile[(1,)](TensorDescriptor.from_tensor(whole, [16, 16]), tile, BLOCK=16)
    assert torch.equal(tile[:4], whole)


def beyond_a_matrix(memory: torch.Tensor, out: torch.Tensor) -> None:
    """By a descriptor of more rows than its base has."""
    rows = TensorDescriptor(memory.view(4, 16)[:3], [4, 16], [16, 1], [16, 16])
    copy_tile[(1,)](rows, out, BLOCK=16)


STRANGE = {
    "behind": lambda memory, out: copied(memory[:7], out, 8),
    "between": lambda memory, out: copied(memory[::2], out, 8),
    "stored": lambda memory, out: copied(memory, out[:7], 8),
    "in a tile": beyond_a_matrix,
}


@pytest.mark.parametrize("what", STRANGE)
def test_what_is_not_its_own_is_seen(what: str) -> None:
    """In every test of this folder, whether its value is used or not."""
    with pytest.raises(InterpreterError, match="not its own"):
        STRANGE[what](torch.zeros(64), torch.zeros(256))


def test_what_is_of_nobody_is_seen() -> None:
    memory, out = torch.zeros(64), torch.zeros(64)
    with watched(forbidden=[memory[3]]):
        copied(memory, out, 3)
        with pytest.raises(InterpreterError, match="not its own"):
            copied(memory, out, 8)


def test_what_is_lent_may_be_touched() -> None:
    memory, out = torch.arange(8.0), torch.zeros(8)
    with watched(lent=[memory]):
        copied(memory[:2], out, 8)
    assert torch.equal(out, memory)
