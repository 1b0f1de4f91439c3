from __future__ import annotations

import pytest
import torch

from hypic_sdk.kernels.experts.op import Routing, route_with_swiglu
from hypic_sdk.layers import moe as moe_layer
from hypic_sdk.layers.linear import Linear
from hypic_sdk.layers.moe import MixtureOfExperts, MoELayout
from tests.closeness import assert_close
from tests.layers.filled import filled, rows
from tests.plain_context import PlainContext


def gated(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ gate_up.T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up) @ down.T


def over(x: torch.Tensor, num_rows: int | None = None) -> PlainContext:
    """A context for these rows, of which the first `num_rows` are no padding."""
    context = PlainContext()
    context.num_rows = len(x) if num_rows is None else num_rows
    return context


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_every_row_adds_its_experts_and_the_gated_shared_one(renormalise: bool, top_k: int) -> None:
    layout = MoELayout(5, top_k, inner=7, shared_inner=3, renormalise=renormalise)
    moe = filled(MixtureOfExperts(6, layout, dtype=torch.float64))
    x = rows(9, 6)
    gate_up, router, gate = moe.input.weight.split(layout.projected)
    want = []
    for row in x:
        shares = (router @ row).softmax(-1)
        best = shares.argsort(descending=True)[:top_k].tolist()
        total = sum(shares[e] for e in best) if renormalise else 1.0
        out = sum(shares[e] / total * gated(row, moe.gate_up[e], moe.down[e]) for e in best)
        shared = gated(row, gate_up, moe.shared_down.weight)
        want.append(out + (gate[0] @ row).sigmoid() * shared)
    assert_close("moe", moe(x, over(x)), torch.stack(want), rel_rms=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shares_are_wide_and_rows_keep_their_dtype(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And logits have the dtype of the rows: rounded before the softmax, as they are published."""
    logits, shares = [], []

    def look(
        router_logits: torch.Tensor, gate_up: torch.Tensor, **more: object
    ) -> tuple[Routing, torch.Tensor]:
        logits.append(router_logits)
        routing, inner = route_with_swiglu(router_logits, gate_up, **more)
        shares.append(routing.weights)
        return routing, inner

    monkeypatch.setattr(moe_layer, "route_with_swiglu", look)
    moe = filled(MixtureOfExperts(6, MoELayout(5, 2, inner=7, shared_inner=3), dtype=dtype))
    x = rows(9, 6, dtype=dtype)
    assert moe(x, over(x)).dtype == dtype
    assert [seen.dtype for seen in (*logits, *shares)] == [dtype, torch.float32]
    assert logits[0].shape == (9, 5)


@pytest.mark.parametrize("shared_inner", [1, 3, 4, 8])
@pytest.mark.parametrize("num_experts", [1, 2, 5, 8])
def test_one_product_a_row_with_rows_of_whole_16_bytes(num_experts: int, shared_inner: int) -> None:
    """All that is read off a block's input is one weight, filled up with rows of the gate."""
    layout = MoELayout(num_experts, 1, inner=7, shared_inner=shared_inner)
    *products, gate = layout.projected
    assert products == [2 * shared_inner, num_experts]
    assert 1 <= gate <= 8
    assert sum(layout.projected) % 8 == 0
    moe = MixtureOfExperts(6, layout, dtype=torch.float32)
    assert [name for name, part in moe.named_modules() if isinstance(part, Linear)] == [
        "input",
        "shared_down",
    ]


def test_the_input_is_left_as_it_was() -> None:
    moe = filled(MixtureOfExperts(6, MoELayout(5, 2, inner=7, shared_inner=3), dtype=torch.float32))
    x = rows(9, 6, dtype=torch.float32)
    before = x.clone()
    moe(x, over(x))
    assert torch.equal(x, before)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 16])
def test_no_expert_is_read_for_padding(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the other rows are bit by bit what they are without it."""
    seen: list[Routing] = []
    right = moe_layer.experts

    def look(x_LD: torch.Tensor, routing: Routing, *rest: torch.Tensor, **more: bool) -> object:
        seen.append(routing)
        return right(x_LD, routing, *rest, **more)

    monkeypatch.setattr(moe_layer, "experts", look)
    moe = filled(MixtureOfExperts(6, MoELayout(5, 2, inner=7, shared_inner=3), dtype=torch.float32))
    x = rows(16, 6, dtype=torch.float32)
    context = over(x, num_rows)
    context.row_independent = True
    padded = moe(x, context)
    (routing,) = seen
    assert set(routing.indices[num_rows:].flatten().tolist()) <= set(routing.indices[0].tolist())
    assert routing.weights[num_rows:].eq(0).all()
    context.num_rows = 16
    assert torch.equal(padded[:num_rows], moe(x, context)[:num_rows])
    assert padded.isfinite().all()
    x[num_rows:] = torch.nan
    context.num_rows = num_rows
    assert torch.equal(moe(x, context)[:num_rows], padded[:num_rows])
