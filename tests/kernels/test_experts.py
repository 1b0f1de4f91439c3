from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.experts import grouped, kernel, order, reference
from hypic_sdk.kernels.experts.op import (
    Routing,
    Shared,
    experts,
    route,
    route_with_swiglu,
    suits_grouped,
)
from hypic_sdk.kernels.mlp import kernel as mlp_kernel
from hypic_sdk.kernels.mlp.op import swiglu
from tests.closeness import assert_close

# two products of up to 70 terms; bf16: the inner activations and the result are rounded, 2^-9 each
BOUNDS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-7}


def draw(num_experts: int, width: int, inner: int, dtype: torch.dtype):
    gate_up = torch.randn(num_experts, 2 * inner, width).to(dtype)
    return gate_up, torch.randn(num_experts, width, inner).to(dtype)


def draw_shared(num_rows: int, width: int, dtype: torch.dtype, device: str = "cpu") -> Shared:
    """As a layer has them: slices of wider rows, whose other numbers are NaN."""
    outputs = torch.full((num_rows, width + 3), torch.nan, dtype=dtype, device=device)[:, :width]
    gate = torch.full((num_rows, 9), torch.nan, dtype=dtype, device=device)[:, 4:5]
    outputs.copy_(torch.randn(num_rows, width))
    gate.copy_(2.0 * torch.randn(num_rows, 1))
    return Shared(outputs, gate)


def share_of(shared: Shared | None) -> torch.Tensor | float:
    """What is added to the routed experts, in fp64."""
    return 0.0 if shared is None else shared.outputs.double() * shared.gate.double().sigmoid()


def dense(x, routing: Routing, gate_up, down, *, terms: bool = False) -> torch.Tensor:
    """The definition: each row through each of its experts, in fp64; or how large its terms are."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(len(x)):
        for expert, weight in zip(routing.indices[row], routing.weights[row], strict=True):
            gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
            inner, last = gate / (1 + (-gate).exp()) * up, down[expert].double()
            out[row] += weight.double() * (last.abs() @ inner.abs() if terms else last @ inner)
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
    shared = draw_shared(*x.shape, dtype) if seed % 2 else None
    got = experts(x, routing, gate_up, down, row_independent=row_independent, shared=shared)
    assert got.dtype == dtype
    want = dense(x, routing, gate_up, down) + share_of(shared)
    # terms of few numbers may cancel, what was rounded of them does not
    terms = dense(x, routing, gate_up, down, terms=True) + abs(share_of(shared))
    assert (got.double() - want).norm() <= BOUNDS[dtype] * terms.norm()


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


# the library's product on a CPU sums in another order than ours, and the interpreter cuts the bits
# of bf16 off where a GPU rounds them
GROUPED_BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}

# small, so that experts end within tiles and between them
TILE = grouped.ExpertTile(16, 16, 16, 4, 2)
TILES = {
    "a program a tile": TILE,
    "weights left": TILE._replace(weights_left=True),
    "described": TILE._replace(described=True),
    "a program an expert": TILE._replace(split=1, weights_left=True, described=True),
    "three programs an expert": TILE._replace(split=3),
}


@settings(max_examples=16)  # the interpreter runs one program at a time
@given(
    num_rows=st.sampled_from([0, 1, 5, 17, 30]),
    num_experts=st.integers(1, 5),
    path=st.sampled_from(["reading", "library", "alike"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    has_shared=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_every_path_is_the_definition(num_rows, num_experts, path, dtype, has_shared, seed):
    """Experts without a row, with all rows, with rows for one tile and for several."""
    if path != "library" and dtype == torch.bfloat16:
        dtype = torch.float16  # the interpreter multiplies no bf16
    torch.manual_seed(seed)
    gate_up, down = draw(num_experts, 16, 24, dtype)
    x = torch.randn(num_rows, 16).to(dtype)
    routing = route(
        torch.randn(num_rows, num_experts), top_k=1 + seed % num_experts, renormalise=True
    )
    shared = draw_shared(num_rows, 16, dtype) if has_shared else None
    tiles = None if path == "library" else grouped.Tiles(TILE, TILE)
    with (
        mock.patch.object(order, "_LARGEST_WHOLE", 32),
        mock.patch.object(order, "_BLOCK", 32),
        mock.patch.object(kernel, "_BLOCK_D", 8),
        mock.patch.object(kernel, "fitting_tiles", return_value=tiles),
        mock.patch.object(torch.Tensor, "new_empty", poisoned),
    ):
        got = kernel.experts(
            x, *routing, gate_up, down, row_independent=path == "alike", shared=shared
        )
    assert got.dtype == dtype
    assert got.shape == x.shape
    if num_rows:
        want = dense(x, routing, gate_up, down) + share_of(shared)
        assert_close(path, got, want, rel_rms=GROUPED_BOUNDS[dtype])


def assert_added_in_two_steps(device: str, dtype: torch.dtype, width: int) -> None:
    """The sum of the routed experts is rounded, then the share is added: on a CPU bit by bit."""
    torch.manual_seed(0)
    num_rows, top_k = 40, 3
    products = torch.randn(num_rows * top_k, width).to(device, dtype)
    places = torch.randperm(num_rows * top_k).view(num_rows, top_k).to(device)
    indices = torch.rand(num_rows, 7).argsort(-1)[:, :top_k].to(device)
    weights = torch.rand(num_rows, top_k).to(device)
    gates = torch.cat([9.0 * torch.randn(20), torch.tensor([0.0, 80.0, -80.0]).repeat(7)])
    shared = draw_shared(num_rows, width, dtype, device)
    shared.gate.copy_(gates[:num_rows, None])
    routed = kernel.combine(products, indices, places, weights, None)
    with mock.patch.object(torch.Tensor, "new_empty", poisoned):
        got = kernel.combine(products, indices, places, weights, shared)
    share = shared.outputs * shared.gate.float().sigmoid().to(dtype)
    if device == "cpu":
        assert torch.equal(got, routed + share)
    else:
        assert_added(got, routed, share)


def assert_added(got: torch.Tensor, routed: torch.Tensor, share: torch.Tensor) -> None:
    """The sum, where a device's sigmoid may be another one's next number in bf16."""
    bound = 2**-8 * (routed.double().abs() + 2.0 * share.double().abs())
    assert ((got.double() - routed.double() - share.double()).abs() <= bound).all()


@pytest.mark.parametrize("width", [8, 300])
def test_the_shared_expert_is_added_in_two_steps(width):
    """In fp16: of bf16 the interpreter cuts bits off."""
    assert_added_in_two_steps("cpu", torch.float16, width)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [8, 300, 2048])
def test_on_a_gpu_the_shared_expert_is_added_in_two_steps(width):
    assert_added_in_two_steps("cuda", torch.bfloat16, width)


@settings(max_examples=20)  # the interpreter runs one program at a time
@given(
    num_rows=st.integers(1, 40),
    num_experts=st.integers(1, 5),
    sizes=st.sampled_from([(16, 24), (8, 8), (40, 18)]),
    tile=st.sampled_from(list(TILES)),
    crowded=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_every_place_gets_the_product_of_its_row_and_expert(
    num_rows, num_experts, sizes, tile, crowded, seed
):
    """Whatever the tiles, with all rows in one expert too; what nobody wrote is poison.

    That a row's bits are its own is seen on a GPU: the interpreter's products are a CPU library's.
    """
    torch.manual_seed(seed)
    if TILES[tile].described:
        sizes = tuple(size // 8 * 8 for size in sizes)  # of 16 bytes, as `suits_grouped` demands
    gate_up, down = draw(num_experts, *sizes, torch.float16)
    x = torch.randn(num_rows, sizes[0]).half()
    logits = torch.randn(num_rows, num_experts)
    logits[:, seed % num_experts] += 100.0 * crowded
    indices = route(logits, top_k=min(1 + seed % 2, num_experts), renormalise=True).indices
    rows, _, ends = order.order(indices, num_experts)
    tiles = grouped.Tiles(TILES[tile], TILES[tile])
    with mock.patch.object(torch.Tensor, "new_empty", poisoned):
        products = grouped.grouped_products(x, rows, ends, gate_up, down, tiles)
    assert products.isfinite().all()
    experts_of_places = torch.repeat_interleave(
        torch.arange(num_experts), ends.diff(prepend=ends[:1] * 0)
    )
    for got, row, expert in zip(products, rows, experts_of_places, strict=True):
        gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
        want = down[expert].double() @ (gate / (1 + (-gate).exp()) * up)
        assert_close("product", got, want, rel_rms=2**-8)


LIMITS = [limit for limit, _ in grouped.READING]


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("mean", [0.5, *LIMITS, *(limit + 1 for limit in LIMITS), "alike", "else"])
def test_the_tiles_of_every_mean_are_the_definition(mean, crowded):
    """Up to a limit and beyond it; all rows in one expert; padding is zero and goes with row 0."""
    torch.manual_seed(0)
    num_experts, top_k = 4, 2
    num_rows = int((3 if isinstance(mean, str) else mean) * num_experts / top_k)
    gate_up, down = draw(num_experts, 40, 24, torch.float16)
    x = torch.randn(num_rows, 40).half()
    logits = torch.randn(num_rows, num_experts)
    logits[:, 2] += 100.0 * crowded
    count = max(1, num_rows - 2)
    top_k = top_k - crowded
    routing = route(logits, top_k=top_k, renormalise=True, row_count=torch.tensor([count]))
    with (
        mock.patch.object(grouped, "_holds_tiles", return_value=mean != "else"),
        mock.patch.object(torch.Tensor, "new_empty", poisoned),
    ):
        got = kernel.experts(x, *routing, gate_up, down, row_independent=isinstance(mean, str))
    own = Routing(*(part[:count] for part in routing))
    want = dense(x[:count], own, gate_up, down)
    assert_close(f"mean {mean}", got[:count], want, rel_rms=GROUPED_BOUNDS[torch.float16])
    assert not got[count:].any()


@settings(max_examples=25)  # the interpreter runs one program at a time
@given(
    num_rows=st.integers(1, 60),
    num_experts=st.integers(1, 9),
    top_k=st.integers(1, 4),
    sizes=st.sampled_from([(4096, 256, 32, 512), (4, 16, 4, 2), (4, 8, 8, 4), (4, 4, 32, 64)]),
    crowded=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_order_is_a_stable_sort(num_rows, num_experts, top_k, sizes, crowded, seed):
    """Looked at whole, and in blocks whose ends fall anywhere, added up in one step and in many."""
    torch.manual_seed(seed)
    indices = torch.randint(0, 1 if crowded else num_experts, (num_rows, top_k))
    indices += (num_experts - 1) * crowded
    names = ("_LARGEST_WHOLE", "_BLOCK", "_AFTER", "_BLOCKS")
    with (
        mock.patch.multiple(order, **dict(zip(names, sizes, strict=True))),
        mock.patch.object(torch.Tensor, "new_empty", poisoned),
    ):
        assert_stably_sorted(indices, num_experts)


def assert_stably_sorted(indices, num_experts):
    rows, places, ends = order.order(indices, num_experts)
    sorted_choices = indices.flatten().argsort(stable=True)
    assert torch.equal(rows, sorted_choices // indices.shape[1])
    assert torch.equal(places, sorted_choices.argsort())
    assert torch.equal(ends, indices.flatten().bincount(minlength=num_experts).cumsum(0).int())
    assert rows.dtype == places.dtype == torch.int64


@pytest.mark.gpu
@pytest.mark.parametrize("num_experts", [1, 60, 256])
@pytest.mark.parametrize("crowded", [False, True])
def test_on_a_gpu_the_order_is_a_stable_sort(num_experts, crowded):
    """Of as many choices as are looked at whole, of one more, and of several steps of blocks."""
    largest, steps = order._LARGEST_WHOLE, 2 * order._BLOCK * order._BLOCKS
    for count in (1, 2000, largest, largest + 1, 80_000, steps + 77):
        indices = torch.randint(0, num_experts, (count, 1), device="cuda")
        assert_stably_sorted(indices * 0 + num_experts - 1 if crowded else indices, num_experts)


def poisoned(self, *args, **more):
    """new_empty, with nothing in it that could be taken for a result."""
    out = torch.empty(*args, **{"dtype": self.dtype, "device": self.device, **more})
    return out.fill_(torch.nan if out.is_floating_point() else -(2**30))


@pytest.mark.parametrize(("index", "major", "holds"), [(70, 8, False), (71, 9, True)])
def test_the_mean_number_of_rows_picks_the_tiles(index, major, holds, monkeypatch):
    """On devices that hold them; on others the library's products serve, or tiles without a unit.

    Row-independent, the tiles are the same for any number of rows.
    """
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))

    def pick(count, row_independent):
        device = torch.device("cuda", index)
        return grouped.fitting_tiles(count, 8, device, row_independent=row_independent)

    counts = [int(8 * limit) + more for limit in LIMITS for more in (0, 1)]
    wanted = [*[tiles for _, tiles in grouped.READING for _ in range(2)][1:], grouped.ALIKE]
    assert [pick(count, False) for count in counts] == (wanted if holds else [None] * len(counts))
    alike = grouped.ALIKE if holds else grouped.ELSEWHERE
    assert {pick(count, True) for count in (1, *counts, 10**6)} == {alike}
    assert holds or not any(tile.described for tile in alike)
    assert not any(tile.split for tile in alike), "the tiles of a row's own place"


@pytest.mark.parametrize("row_independent", [False, True])
@pytest.mark.parametrize("holds", [False, True])
def test_the_library_serves_where_tiles_do_not_fit(row_independent, holds, monkeypatch):
    seen = {}
    for name in ("grouped_products", "library_products"):
        monkeypatch.setattr(kernel, name, lambda *given, name=name: seen.update({name: given}))
    monkeypatch.setattr(kernel, "combine", lambda *given: None)
    monkeypatch.setattr(grouped, "_holds_tiles", lambda device: holds)
    indices, weights = torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1)
    gate_up, down = draw(2, 8, 8, torch.float32)
    kernel.experts(
        torch.zeros(3, 8), indices, weights, gate_up, down, row_independent=row_independent
    )
    wanted = "grouped_products" if holds or row_independent else "library_products"
    assert list(seen) == [wanted]


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


def projection(
    num_rows: int, num_experts: int, inner: int, dtype: torch.dtype, device: str = "cpu"
):
    """Router logits, and gate and up beside them; what else is in their rows is NaN."""
    shape = num_rows, 2 * inner + num_experts + 5
    rows = torch.full(shape, torch.nan, dtype=dtype, device=device)
    gate_up, logits = rows[:, 1 : 1 + 2 * inner], rows[:, 2 * inner + 3 : -2]
    gate_up.copy_(3.0 * torch.randn(num_rows, 2 * inner))
    logits.copy_(torch.randn(num_rows, num_experts))
    return logits, gate_up


@settings(max_examples=25)  # the interpreter runs one program at a time
@given(
    num_rows=st.integers(0, 9),
    num_experts=st.integers(1, 9),
    inner=st.sampled_from([1, 7, 8, 20]),
    count=st.none() | st.integers(0, 9),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16]),
    seed=st.integers(0, 2**31),
)
def test_route_with_swiglu_is_both_bit_by_bit(num_rows, num_experts, inner, count, dtype, seed):
    """Of one block of columns, and of several; padding has its own inner activations."""
    torch.manual_seed(seed)
    logits, gate_up = projection(num_rows, num_experts, inner, dtype)
    row_count = None if count is None else torch.tensor([min(count, num_rows)])
    top_k, renormalise = 1 + seed % num_experts, seed % 2 == 0
    options = {"top_k": top_k, "renormalise": renormalise, "row_count": row_count}
    routing, got = route_with_swiglu(logits, gate_up, **options)
    for mine, own in zip(
        (*routing, got), (*route(logits, **options), swiglu(gate_up)), strict=True
    ):
        assert torch.equal(mine, own)
    if dtype == torch.float64:
        return
    wanted = top_k, renormalise, row_count
    own = *kernel.route(logits, *wanted), mlp_kernel.swiglu(gate_up)
    with (
        mock.patch.object(kernel, "_BLOCK_I", 8),
        mock.patch.object(torch.Tensor, "new_empty", poisoned),
    ):
        together = kernel.route_with_swiglu(logits, gate_up, *wanted)
    for mine, alone in zip(together, own, strict=True):
        assert mine.dtype == alone.dtype
        assert torch.equal(mine, alone)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("sizes", [(1, 256, 512), (37, 60, 1408), (300, 8, 100)], ids=str)
def test_on_a_gpu_route_with_swiglu_is_both(sizes, dtype):
    """Shares to a rounding: another compiled kernel may add over experts in another order."""
    logits, gate_up = projection(*sizes, dtype, "cuda")
    row_count = torch.tensor([max(1, sizes[0] - 3)], device="cuda")
    options = {"top_k": 8, "renormalise": True, "row_count": row_count}
    routing, inner = route_with_swiglu(logits, gate_up, **options)
    own = route(logits, **options)
    assert torch.equal(routing.indices, own.indices)
    assert_close("shares", routing.weights.cpu(), own.weights.cpu(), rel_rms=1e-6)
    assert torch.equal(inner, swiglu(gate_up))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sizes", [(8, 2, 256, 96), (64, 8, 512, 128), (256, 8, 2048, 512)], ids=str
)
@pytest.mark.parametrize("holds", [False, True])
def test_on_a_gpu_the_grouped_product_is_row_independent(sizes, holds, monkeypatch):
    """Any batch, any order, and more rows than one call takes: the same bits for a row.

    With the tiles of this device, and with those that fit any.
    """
    monkeypatch.setattr(
        grouped, "_holds_tiles", lambda device, own=grouped._holds_tiles: holds and own(device)
    )
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


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sizes", [(8, 2, 256, 96), (64, 8, 512, 128), (256, 8, 2048, 512)], ids=str
)
def test_on_a_gpu_every_number_of_rows_is_the_definition(sizes):
    """Of all paths, with padding in every batch; a batch has the same bits twice."""
    num_experts, top_k, width, inner = sizes
    torch.manual_seed(0)
    gate_up = torch.randn(num_experts, 2 * inner, width, device="cuda").bfloat16() / width**0.5
    down = torch.randn(num_experts, width, inner, device="cuda").bfloat16() / inner**0.5
    per_expert = num_experts // top_k
    limits = [int(limit * per_expert) for limit in LIMITS]
    for count in (1, *(limit + more for limit in limits for more in (-1, 0, 1))):
        x = torch.randn(count + 1, width, device="cuda").bfloat16()
        logits = torch.randn(len(x), num_experts, device="cuda")
        row_count = torch.tensor([count], device="cuda")
        routing = route(logits, top_k=top_k, renormalise=True, row_count=row_count)
        got, again = (experts(x, routing, gate_up, down, row_independent=False) for _ in range(2))
        assert torch.equal(got, again)
        want = reference.experts(x, *routing, gate_up, down, row_independent=False)
        shared = draw_shared(*x.shape, torch.bfloat16, "cuda")
        whole = experts(x, routing, gate_up, down, row_independent=False, shared=shared)
        share = shared.outputs * shared.gate.float().sigmoid().bfloat16()
        assert_added(whole, got, share)
        # both round inner activations and result to bf16, the reference each product too
        assert_close(f"{count} rows", got[:count].cpu(), want[:count].cpu(), rel_rms=2**-6)
        assert not got[count:].any()


def test_wrong_shapes_are_named():
    gate_up, down = draw(4, 5, 3, torch.float32)
    x, routing = torch.randn(3, 5), route(torch.randn(3, 4), top_k=2, renormalise=True)
    with pytest.raises(ValueError, match=r"\(4, 6, 5\).*\(4, 5, 2\)"):
        experts(x, routing, gate_up, down[..., 1:], row_independent=False)
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2, 5\)"):
        experts(x[1:], routing, gate_up, down, row_independent=False)
    outputs, gate = draw_shared(3, 5, torch.float32)
    for shared, said in (
        (Shared(outputs[:, 1:], gate), r"\(3, 4\)"),
        (Shared(outputs, gate[1:]), r"\(2, 1\)"),
        (Shared(outputs, gate.double()), "float64"),
    ):
        with pytest.raises(ValueError, match=said):
            experts(x, routing, gate_up, down, row_independent=False, shared=shared)
    for gate_up, said in (
        (torch.randn(2, 6), r"\(2, 6\).*\(3, 4\)"),
        (torch.randn(3, 5), r"\(3, 5\)"),
        (torch.randn(3, 6).double(), "float64"),
    ):
        with pytest.raises(ValueError, match=said):
            route_with_swiglu(torch.randn(3, 4), gate_up, top_k=2, renormalise=True)
    with pytest.raises(ValueError, match="top 5"):
        route(torch.randn(3, 4), top_k=5, renormalise=True)
