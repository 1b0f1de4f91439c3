from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.experts import grouped, kernel, reference
from hypic_sdk.kernels.experts.op import Routing, experts, route, suits_grouped
from tests.closeness import assert_close

# two products of up to 70 terms; bf16: the inner activations and the result are rounded, 2^-9 each
BOUNDS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-7}


def draw(num_experts: int, width: int, inner: int, dtype: torch.dtype):
    gate_up = torch.randn(num_experts, 2 * inner, width).to(dtype)
    return gate_up, torch.randn(num_experts, width, inner).to(dtype)


def dense(x, routing: Routing, gate_up, down) -> torch.Tensor:
    """The definition: each row through each of its experts, in fp64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(len(x)):
        for expert, weight in zip(routing.indices[row], routing.weights[row], strict=True):
            gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
            inner = gate / (1 + (-gate).exp()) * up
            out[row] += weight.double() * (down[expert].double() @ inner)
    return out


@given(
    tiles=st.integers(1, 2),
    num_experts=st.integers(1, 7),
    top_k=st.integers(1, 7),
    sizes=st.sampled_from([(5, 3), (1, 1), (70, 33), (16, 40)]),
    dtype=st.sampled_from(list(BOUNDS)),
    row_independent=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_agrees_with_the_definition(tiles, num_experts, top_k, sizes, dtype, row_independent, seed):
    torch.manual_seed(seed)
    gate_up, down = draw(num_experts, *sizes, dtype)
    x = torch.randn(16 * tiles, sizes[0]).to(dtype)
    logits = torch.randn(len(x), num_experts).to(dtype)
    routing = route(logits, top_k=min(top_k, num_experts), renormalise=True)
    got = experts(x, routing, gate_up, down, row_independent=row_independent)
    assert got.dtype == dtype
    assert_close("experts", got, dense(x, routing, gate_up, down), rel_rms=BOUNDS[dtype])


def test_any_row_count_without_row_independence():
    gate_up, down = draw(4, 5, 3, torch.float32)
    x = torch.randn(3, 5)
    routing = route(torch.randn(3, 4), top_k=2, renormalise=False)
    got = experts(x, routing, gate_up, down, row_independent=False)
    assert_close("experts", got, dense(x, routing, gate_up, down), rel_rms=1e-6)
    none = Routing(routing.indices[:0], routing.weights[:0])
    assert experts(x[:0], none, gate_up, down, row_independent=False).shape == (0, 5)


@given(
    num_experts=st.integers(1, 9),
    renormalise=st.booleans(),
    dtype=st.sampled_from(list(BOUNDS)),
    seed=st.integers(0, 2**31),
)
def test_routing_takes_the_best(num_experts, renormalise, dtype, seed):
    torch.manual_seed(seed)
    top_k = 1 + seed % num_experts
    logits = torch.randn(6, num_experts).to(dtype)
    routing = route(logits, top_k=top_k, renormalise=renormalise)
    shares = logits.double().softmax(-1)
    for row in range(6):
        best = sorted(range(num_experts), key=lambda e, row=row: (-logits[row, e].item(), e))
        assert routing.indices[row].tolist() == best[:top_k]
        want = shares[row, best[:top_k]]
        want = want / want.sum() if renormalise else want
        assert_close("weights", routing.weights[row], want, rel_rms=1e-6)
    assert routing.weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_the_lower_index_wins_a_tie():
    logits = torch.zeros(2, 300)
    logits[1, 200:] = 1.0
    routing = route(logits, top_k=3, renormalise=True)
    assert routing.indices.tolist() == [[0, 1, 2], [200, 201, 202]]


@given(
    num_rows=st.integers(1, 70),
    num_experts=st.integers(1, 9),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_a_rows_bits_depend_on_no_other_row_and_not_on_its_place(
    num_rows, num_experts, dtype, seed
):
    """Whatever the routing does with the batch: rows in another order, among other rows, alone."""
    torch.manual_seed(seed)
    gate_up, down = draw(num_experts, 40, 21, dtype)
    x = torch.randn(num_rows, 40).to(dtype)
    routing = route(
        torch.randn(num_rows, num_experts), top_k=1 + seed % num_experts, renormalise=True
    )

    def run(chosen):
        rows = Routing(routing.indices[chosen], routing.weights[chosen])
        return experts(x[chosen], rows, gate_up, down, row_independent=True)

    whole, order = run(torch.arange(num_rows)), torch.randperm(num_rows)
    assert torch.equal(run(order), whole[order])
    some = order[: 1 + seed % num_rows]
    assert torch.equal(run(some), whole[some])


# the library's product on a CPU sums in another order than ours
GROUPED_BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}


@settings(max_examples=25)  # the interpreter runs one program at a time
@given(
    num_rows=st.sampled_from([0, 1, 5, 17, 40]),
    num_experts=st.integers(1, 9),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    row_independent=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_grouped_product_is_the_definition(num_rows, num_experts, dtype, row_independent, seed):
    """Experts without a row, with all rows, with rows for one tile and for several."""
    if row_independent and dtype == torch.bfloat16:
        dtype = torch.float16  # the interpreter multiplies no bf16
    torch.manual_seed(seed)
    gate_up, down = draw(num_experts, 16, 24, dtype)
    x = torch.randn(num_rows, 16).to(dtype)
    routing = route(
        torch.randn(num_rows, num_experts), top_k=1 + seed % num_experts, renormalise=True
    )
    with (
        mock.patch.object(kernel, "_LARGEST_BLOCK", 32),
        mock.patch.object(kernel, "_BLOCK_D", 8),
    ):
        got = kernel.experts(x, *routing, gate_up, down, row_independent=row_independent)
    assert got.dtype == dtype
    assert got.shape == x.shape
    if num_rows:
        bound = GROUPED_BOUNDS[dtype]
        assert_close("grouped", got, dense(x, routing, gate_up, down), rel_rms=bound)


@settings(max_examples=8)  # the interpreter runs one program at a time
@given(
    num_rows=st.integers(1, 40),
    num_experts=st.integers(1, 5),
    sizes=st.sampled_from([(16, 24), (5, 3), (40, 18)]),
    seed=st.integers(0, 2**31),
)
def test_every_place_gets_the_product_of_its_row_and_expert(num_rows, num_experts, sizes, seed):
    """In small tiles, so that experts end within and between them; what nobody wrote is poison.

    That a row's bits are its own is seen on a GPU: the interpreter's products are a CPU library's.
    """
    torch.manual_seed(seed)
    gate_up, down = draw(num_experts, *sizes, torch.float16)
    x = torch.randn(num_rows, sizes[0]).half()
    routing = route(torch.randn(num_rows, num_experts), top_k=min(2, num_experts), renormalise=True)
    tile = grouped.Tile(16, 16, 16, 4, 2)
    rows, _, ends = kernel._order(routing.indices, num_experts)
    with mock.patch.object(torch.Tensor, "new_empty", poisoned):
        products = grouped.grouped_products(x, rows, ends, gate_up, down, tile, tile)
    assert products.isfinite().all()
    experts_of_places = torch.repeat_interleave(
        torch.arange(num_experts), ends.diff(prepend=ends[:1] * 0)
    )
    for got, row, expert in zip(products, rows, experts_of_places, strict=True):
        gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
        want = down[expert].double() @ (gate / (1 + (-gate).exp()) * up)
        assert_close("product", got, want, rel_rms=2**-8)


def poisoned(self, *args, **more):
    """new_empty, with nothing in it that could be taken for a result."""
    out = torch.empty(*args, **{"dtype": self.dtype, **more})
    return out.fill_(torch.nan) if out.is_floating_point() else out


@settings(max_examples=25)  # the interpreter runs one program at a time
@given(
    num_rows=st.integers(0, 20),
    num_experts=st.integers(1, 9),
    renormalise=st.booleans(),
    count=st.none() | st.integers(0, 20),
    seed=st.integers(0, 2**31),
)
def test_the_kernel_routes_as_the_definition(num_rows, num_experts, renormalise, count, seed):
    """A few values, so that ties abound; padding goes where row 0 goes."""
    torch.manual_seed(seed)
    logits = torch.randint(-3, 4, (num_rows, num_experts)).float()
    row_count = None if count is None else torch.tensor([min(count, num_rows)])
    wanted = 1 + seed % num_experts, renormalise, row_count
    got, want = kernel.route(logits, *wanted), reference.route(logits, *wanted)
    assert torch.equal(got[0], want[0])
    if num_rows:
        assert_close("weights", got[1], want[1], rel_rms=1e-6)
        logits[seed % num_rows] = torch.nan
        again = kernel.route(logits, *wanted)[0]
        assert ((again >= 0) & (again < num_experts)).all(), "what is no number goes somewhere"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sizes", [(8, 2, 256, 96), (64, 8, 512, 128), (256, 8, 2048, 512)], ids=str
)
def test_on_a_gpu_the_grouped_product_is_row_independent(sizes):
    """Any batch, any order, and more rows than one call takes: the same bits for a row."""
    num_experts, top_k, width, inner = sizes
    torch.manual_seed(0)
    gate_up = torch.randn(num_experts, 2 * inner, width, device="cuda").bfloat16() / width**0.5
    down = torch.randn(num_experts, width, inner, device="cuda").bfloat16() / inner**0.5
    assert suits_grouped(gate_up[0], gate_up, down)
    num_rows = 2 * 128 * num_experts // top_k + 77
    x = torch.randn(num_rows, width, device="cuda").bfloat16()
    routing = route(
        torch.randn(num_rows, num_experts, device="cuda"), top_k=top_k, renormalise=True
    )

    def run(chosen):
        rows = Routing(routing.indices[chosen], routing.weights[chosen])
        return experts(x[chosen], rows, gate_up, down, row_independent=True)

    whole = run(torch.arange(num_rows, device="cuda"))
    reference_rows = reference.experts(
        x[:64], routing.indices[:64], routing.weights[:64], gate_up, down, row_independent=False
    )
    # both round inner activations and result to bf16
    assert_close("grouped", whole[:64].cpu(), reference_rows.cpu(), rel_rms=2**-6)
    for count in (1, 2, 15, 16, 64, 129, 300, 1000, num_rows):
        chosen = torch.randperm(num_rows, device="cuda")[:count]
        assert torch.equal(run(chosen), whole[chosen]), count


def test_wrong_shapes_are_named():
    gate_up, down = draw(4, 5, 3, torch.float32)
    x, routing = torch.randn(3, 5), route(torch.randn(3, 4), top_k=2, renormalise=True)
    with pytest.raises(ValueError, match=r"\(4, 6, 5\).*\(4, 5, 2\)"):
        experts(x, routing, gate_up, down[..., 1:], row_independent=False)
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2, 5\)"):
        experts(x[1:], routing, gate_up, down, row_independent=False)
    with pytest.raises(ValueError, match="top 5"):
        route(torch.randn(3, 4), top_k=5, renormalise=True)
