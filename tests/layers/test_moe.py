from __future__ import annotations

import pytest
import torch

from hypic_sdk.layers.moe import MixtureOfExperts, MoELayout
from tests.closeness import assert_close
from tests.layers.filled import filled, rows
from tests.plain_context import PlainContext


def gated(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ gate_up.T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up) @ down.T


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_every_row_adds_its_experts_and_the_gated_shared_one(renormalise: bool, top_k: int) -> None:
    layout = MoELayout(5, top_k, inner=7, shared_inner=3, renormalise=renormalise)
    moe = filled(MixtureOfExperts(6, layout, dtype=torch.float64))
    x = rows(9, 6)
    want = []
    for row in x:
        shares = (moe.router.weight @ row).softmax(-1)
        best = shares.argsort(descending=True)[:top_k].tolist()
        total = sum(shares[e] for e in best) if renormalise else 1.0
        out = sum(shares[e] / total * gated(row, moe.gate_up[e], moe.down[e]) for e in best)
        shared = gated(row, moe.shared.gate_up.weight, moe.shared.down.weight)
        want.append(out + (moe.shared_gate.weight @ row).sigmoid() * shared)
    assert_close("moe", moe(x, PlainContext()), torch.stack(want), rel_rms=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shares_are_wide_and_rows_keep_their_dtype(dtype: torch.dtype) -> None:
    moe = filled(MixtureOfExperts(6, MoELayout(5, 2, inner=7, shared_inner=3), dtype=dtype))
    x = rows(9, 6, dtype=dtype)
    assert moe.route(x, PlainContext()).weights.dtype == torch.float32
    assert moe(x, PlainContext()).dtype == dtype


def test_the_input_is_left_as_it_was() -> None:
    moe = filled(MixtureOfExperts(6, MoELayout(5, 2, inner=7, shared_inner=3), dtype=torch.float32))
    x = rows(9, 6, dtype=torch.float32)
    before = x.clone()
    moe(x, PlainContext())
    assert torch.equal(x, before)
