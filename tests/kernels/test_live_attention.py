from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.live_attention import kernel, plan
from hypic_sdk.kernels.live_attention.op import live_attention
from hypic_sdk.kernels.live_attention.table import (
    NO_MERGE,
    NO_TASK,
    AttentionLaunch,
    AttentionTable,
    block_of,
    block_sizes,
)
from hypic_sdk.kernels.live_scan.plan import LONGEST_WALK
from tests.closeness import assert_close
from tests.kernels.watched_memory import watched

# sums of up to a hundred terms; bf16: weights and result are rounded, 2^-9 each, values are exact
BOUNDS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-7}
NUM_SLOTS = 160


def naive(
    query_LQE: torch.Tensor,
    runs: Sequence[AttentionRun],
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """The definition: each row and head by itself, in fp64."""
    out = torch.zeros(query_LQE.shape, dtype=torch.float64)
    ratio = query_LQE.shape[1] // keys_PGE.shape[1]
    for run in runs:
        for row in range(run.row_start, run.row_stop):
            seen = run.slots[: run.first_position + row - run.row_start + 1]
            for head in range(query_LQE.shape[1]):
                keys = keys_PGE[seen, head // ratio].double()
                weights = (scale * keys @ query_LQE[row, head].double()).softmax(0)
                out[row, head] = weights @ values_PGE[seen, head // ratio].double()
    return out


@st.composite
def batches(draw) -> tuple[list[AttentionRun], int]:
    """Runs with rows between them that belong to nobody; slots contiguous or scattered."""
    seed = draw(st.integers(0, 2**31))
    rng = torch.Generator().manual_seed(seed)
    runs, row = [], 0
    for _ in range(draw(st.integers(0, 4))):
        row += draw(st.integers(0, 3))
        num_rows = draw(st.sampled_from([1, 1, 2, 5, 16, 33]))
        first_position = draw(st.sampled_from([0, 0, 1, 17, 60]))
        num_keys = first_position + num_rows
        if draw(st.booleans()):
            start = draw(st.integers(0, NUM_SLOTS - num_keys))
            slots = torch.arange(start, start + num_keys)
        else:
            slots = torch.randperm(NUM_SLOTS, generator=rng)[:num_keys]
        runs.append(AttentionRun.over(row, row + num_rows, first_position, slots))
        row += num_rows
    return runs, row + draw(st.integers(0 if runs else 1, 16))


def tensors(rows: int, Q: int, G: int, E: int, dtype: torch.dtype, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    shapes = (rows, Q, E), (NUM_SLOTS, G, E), (NUM_SLOTS, G, E)
    return [torch.randn(shape, generator=rng).to(dtype) for shape in shapes]


@given(
    batch=batches(),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 4), (6, 2), (6, 3)]),
    head_size=st.sampled_from([1, 3, 16, 21, 64]),
    dtype=st.sampled_from(list(BOUNDS)),
    scale=st.sampled_from([0.1, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_agrees_with_the_definition(batch, heads, head_size, dtype, scale, seed):
    runs, num_rows = batch
    query, keys, values = tensors(num_rows, *heads, head_size, dtype, seed)
    got = live_attention(query, runs, keys, values, scale=scale)
    assert got.dtype == dtype
    want = naive(query, runs, keys, values, scale)
    assert_close("attention", got, want, rel_rms=BOUNDS[dtype])
    padding = torch.ones(num_rows, dtype=torch.bool)
    for run in runs:
        padding[run.row_start : run.row_stop] = False
    assert got[padding].eq(0).all()


def test_slots_that_nobody_may_see_may_hold_anything():
    """Fresh slabs are NaN: neither later slots nor other sequences' slots are read."""
    query, keys, values = tensors(6, 6, 2, 21, torch.float32)
    slots = torch.tensor([9, 4, 5, 6, 7, 30, 31])
    seen = torch.zeros(NUM_SLOTS, dtype=torch.bool)
    seen[slots[:5]] = True
    keys[~seen], values[~seen] = float("nan"), float("nan")
    got = live_attention(query, [AttentionRun(1, 4, 2, slots)], keys, values, scale=0.3)
    assert got.isfinite().all()


@pytest.mark.parametrize("head_size", [21, 64])
@pytest.mark.parametrize(("num_rows", "first_position"), [(1, 100), (1, 0), (40, 60), (33, 0)])
def test_bits_do_not_depend_on_other_runs_or_places(num_rows, first_position, head_size):
    """Alone, among others, at other rows, over other slots, contiguous or scattered: equal bits."""
    G, Q = 3, 6
    num_keys = first_position + num_rows
    query = torch.randn(num_rows, Q, head_size)
    keys, values = torch.randn(2, num_keys, G, head_size)

    def placed(row: int, slots: torch.Tensor, others: list[AttentionRun]) -> torch.Tensor:
        batch = torch.randn(row + num_rows + 30, Q, head_size)
        batch[row : row + num_rows] = query
        slab_keys, slab_values = torch.randn(2, 400, G, head_size)
        slab_keys[slots], slab_values[slots] = keys, values
        run = AttentionRun.over(row, row + num_rows, first_position, slots)
        found = live_attention(batch, [*others, run], slab_keys, slab_values, scale=0.2)
        return found[row : row + num_rows]

    want = placed(0, torch.arange(num_keys), [])
    other = AttentionRun.over(2, 9, 50, torch.randperm(400)[:57])
    for row, slots, others in (
        (9, torch.arange(num_keys), [other]),
        (11, torch.arange(num_keys) + 1, []),
        (0, torch.arange(num_keys) + 7, []),
        (0, torch.randperm(400)[:num_keys], []),
        (
            30,
            torch.randperm(400)[:num_keys],
            [other, AttentionRun.over(10, 11, 0, torch.arange(1))],
        ),
    ):
        assert torch.equal(placed(row, slots, others), want)


def test_one_layer_of_a_slab_is_read_as_it_lies():
    """Views of a larger slab, as the engine hands them in."""
    slab = torch.randn(3, 2, NUM_SLOTS, 2, 5)  # layers, keys and values
    query = torch.randn(4, 4, 5)
    run = AttentionRun.over(0, 4, 3, torch.arange(20, 27))
    got = live_attention(query, [run], slab[1, 0], slab[1, 1], scale=0.5)
    assert_close("attention", got, naive(query, [run], slab[1, 0], slab[1, 1], 0.5), rel_rms=1e-6)


def test_wrong_shapes_are_named():
    query, keys, values = tensors(4, 6, 2, 8, torch.float32)
    run = AttentionRun.over(0, 4, 0, torch.arange(4))
    with pytest.raises(ValueError, match=r"\(160, 2, 7\)"):
        live_attention(query, [run], keys, values[..., 1:], scale=1.0)
    with pytest.raises(ValueError, match="5 query heads"):
        live_attention(query[:, :5], [run], keys, values, scale=1.0)
    with pytest.raises(ValueError, match="row 4 of 3"):
        live_attention(query[:3], [run], keys, values, scale=1.0)
    beyond = AttentionRun.over(0, 4, 0, torch.arange(157, 161))
    with pytest.raises(ValueError, match="up to 161 of 160"):
        live_attention(query, [beyond], keys, values, scale=1.0)


def by_kernel(query, runs, keys, values, scale):
    """The kernel's path over an output of NaN; zeros in rows of no run, which it leaves alone."""
    out = torch.full(query.shape, torch.nan, dtype=query.dtype)
    # all slots are found from those of the first run
    with watched(lent=[run.slots[: run.num_keys] for run in runs]):
        kernel.live_attention(query, runs, keys, values, scale=scale, out_LQE=out)
    padding = torch.ones(query.shape[0], dtype=torch.bool)
    for run in runs:
        padding[run.row_start : run.row_stop] = False
    assert out[padding].isnan().all()
    return out.masked_fill(padding[:, None, None], 0.0)


@given(batch=batches(), seed=st.integers(0, 2**31))
def test_given_an_output_rows_of_no_run_are_left_alone(batch, seed):
    runs, num_rows = batch
    query, keys, values = tensors(num_rows, 4, 2, 8, torch.float32, seed)
    out = torch.full_like(query, 7.0)
    assert live_attention(query, runs, keys, values, scale=0.3, out_LQE=out) is out
    want = live_attention(query, runs, keys, values, scale=0.3)
    covered = torch.zeros(num_rows, dtype=torch.bool)
    for run in runs:
        covered[run.row_start : run.row_stop] = True
    assert torch.equal(out[covered], want[covered])
    assert out[~covered].eq(7.0).all()
    with pytest.raises(ValueError, match="out"):
        live_attention(query, runs, keys, values, scale=0.3, out_LQE=out[:, :1])


def cut_keys(patch: pytest.MonkeyPatch, keys: int, rows: int) -> None:
    """Runs of up to `rows` rows read stretches of `keys` keys, or twice as many, twice again .."""
    patch.setattr(plan, "SPLIT_KEYS", keys)
    patch.setattr(plan, "FEW_KEYS", keys // 2)
    patch.setattr(plan, "MOST_STRETCHES", 9)
    patch.setattr(plan, "SPLIT_ROWS", rows)


KERNEL_BOUNDS = {torch.float32: 1e-6, torch.float16: 2**-9}


@settings(max_examples=30)  # the interpreter runs one program at a time
@given(
    batch=batches(),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 4), (6, 2), (6, 3)]),
    head_size=st.sampled_from([1, 3, 21, 64]),
    dtype=st.sampled_from(list(KERNEL_BOUNDS)),
    split=st.sampled_from([(8, 4), (16, 64), (1024, 64)]),
    seed=st.integers(0, 2**31),
)
def test_the_kernel_agrees_with_the_definition(batch, heads, head_size, dtype, split, seed):
    """In interpreter mode without a GPU; keys in one stretch, and in several."""
    runs, num_rows = batch
    query, keys, values = tensors(num_rows, *heads, head_size, dtype, seed)
    with pytest.MonkeyPatch.context() as patch:
        cut_keys(patch, *split)
        got = by_kernel(query, runs, keys, values, scale=0.3)
    assert got.dtype == dtype
    want = naive(query, runs, keys, values, 0.3)
    assert_close("attention", got, want, rel_rms=KERNEL_BOUNDS[dtype])


@pytest.fixture
def ranges(monkeypatch):
    """For each launch over ranges: whether its keys and values are copied as tiles."""
    found, rows_of = [], kernel._rows_of

    def spied(*arguments):
        rows = rows_of(*arguments)
        found.append(rows is not None)
        return rows

    monkeypatch.setattr(kernel, "_rows_of", spied)
    return found


@pytest.mark.parametrize(
    ("head_size", "is_copied"),
    [(64, True), (16, True), (21, False), (24, False)],  # tiles are powers of two
)
@pytest.mark.parametrize("heads", [(3, 3), (16, 2), (6, 1)])
@pytest.mark.parametrize("first_position", [0, 75])
def test_a_long_run_is_the_same_over_a_range_and_over_scattered_slots(
    first_position, heads, head_size, is_copied, ranges, monkeypatch
):
    """Full blocks, the diagonal and the last rows; whatever is behind its last key is not read."""
    cut_keys(monkeypatch, 16, 16)
    num_rows, (Q, G) = 45, heads
    num_keys = first_position + num_rows
    query, keys, values = tensors(num_rows + 4, Q, G, head_size, torch.float16, seed=first_position)

    def found(slots: torch.Tensor) -> torch.Tensor:
        slabs = torch.full((2, *keys.shape), torch.nan, dtype=torch.float16)
        slabs[0, slots], slabs[1, slots] = keys[:num_keys], values[:num_keys]
        run = AttentionRun.over(2, 2 + num_rows, first_position, slots)
        return by_kernel(query, [run], slabs[0], slabs[1], scale=0.2)

    in_order = torch.arange(num_keys)
    got = found(in_order + 11)
    run = AttentionRun.over(2, 2 + num_rows, first_position, in_order)
    want = naive(query, [run], keys, values, 0.2)
    assert_close("attention", got, want, rel_rms=KERNEL_BOUNDS[torch.float16])
    assert ranges == [is_copied, is_copied], "keys and values"
    scattered = torch.randperm(NUM_SLOTS)[:num_keys]
    assert torch.equal(found(scattered), got)
    assert len(ranges) == 2, "scattered slots are read one by one"


def test_ranges_whose_heads_lie_apart_are_read_slot_by_slot(ranges, monkeypatch):
    cut_keys(monkeypatch, 16, 16)
    query, keys, values = tensors(40, 4, 2, 32, torch.float16)
    runs = [AttentionRun.over(0, 40, 30, torch.arange(5, 75))]
    narrow = query[..., :16], runs, keys[..., :16], values[..., 16:]
    got = by_kernel(*narrow, scale=0.3)
    assert_close("attention", got, naive(*narrow, 0.3), rel_rms=KERNEL_BOUNDS[torch.float16])
    assert ranges == [False, False]


def test_ranges_scattered_and_short_runs_share_a_call(ranges, monkeypatch):
    cut_keys(monkeypatch, 16, 16)
    query, keys, values = tensors(90, 6, 2, 16, torch.float16)
    spans = ((0, 30, 50, False), (31, 60, 0, True), (60, 61, 99, False), (64, 90, 7, True))
    runs = [
        AttentionRun.over(a, b, n, (torch.randperm if mixed else torch.arange)(n + b - a))
        for a, b, n, mixed in spans
    ]
    got = by_kernel(query, tuple(runs), keys, values, scale=0.3)
    want = naive(query, runs, keys, values, 0.3)
    assert_close("attention", got, want, rel_rms=KERNEL_BOUNDS[torch.float16])
    assert ranges == [True, True]
    for run in runs:
        rows = slice(run.row_start, run.row_stop)
        assert torch.equal(by_kernel(query, [run], keys, values, scale=0.3)[rows], got[rows])


@pytest.mark.parametrize("group", [1, 3, 8, 12, 16, 40, 64, 100])
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_block_follows_from_a_runs_rows_and_holds_the_heads_of_a_row(group, is_wide):
    sizes = block_sizes(group, is_wide=is_wide)
    assert sizes == tuple(sorted(set(sizes)))
    assert group <= sizes[0]
    found = [block_of(rows, group, is_wide=is_wide) for rows in range(1, plan.SPLIT_ROWS + 1)]
    assert found == sorted(found), "more rows have no smaller block"
    assert set(found) <= set(sizes)
    for rows, block in enumerate(found, 1):
        if rows * group <= sizes[0]:
            assert block == sizes[0]


@pytest.mark.parametrize("head_size", [16, 21])
def test_bits_are_a_runs_own_in_blocks_of_every_size(head_size, monkeypatch):
    """Alone, and beside runs of its own and of the other sizes; keys in several stretches."""
    cut_keys(monkeypatch, 32, 256)
    query, keys, values = tensors(80, 6, 2, head_size, torch.float16)
    spans = ((0, 1, 140), (1, 9, 100), (9, 17, 30), (20, 64, 60), (64, 66, 5), (66, 80, 120))
    runs = [AttentionRun.over(a, b, n, torch.randperm(NUM_SLOTS)[: n + b - a]) for a, b, n in spans]
    used = {block_of(run.num_rows, 3, is_wide=False) for run in runs}
    assert used == set(block_sizes(3, is_wide=False))
    together = by_kernel(query, tuple(runs), keys, values, scale=0.2)
    want = naive(query, runs, keys, values, 0.2)
    assert_close("attention", together, want, rel_rms=KERNEL_BOUNDS[torch.float16])
    for run in runs:
        rows = slice(run.row_start, run.row_stop)
        alone = by_kernel(query, [run], keys, values, scale=0.2)
        assert torch.equal(alone[rows], together[rows])


def test_tasks_and_sums_of_nobody_do_nothing():
    """What a table has room for beyond its batch; the output stays as it was."""
    query, keys, values = tensors(5, 6, 2, 16, torch.float16)
    launch = AttentionLaunch(
        16, torch.tensor([NO_TASK] * 3), torch.tensor([NO_MERGE] * 2), num_partials=3
    )
    table = AttentionTable(torch.zeros(0, dtype=torch.int64), (launch,))
    assert len(NO_TASK) == len(plan.Task._fields)
    assert len(NO_MERGE) == len(plan.Merge._fields)
    out = torch.full_like(query, torch.nan)
    kernel.live_attention(query, table, keys, values, scale=0.3, out_LQE=out)
    assert out.isnan().all()


@given(
    batch=batches(),
    split=st.sampled_from([(8, 4), (16, 64)]),
    rows_per_task=st.sampled_from([1, 2, 5]),
)
def test_tasks_cover_every_row_and_key_once(batch, split, rows_per_task):
    runs, _ = batch
    with pytest.MonkeyPatch.context() as patch:
        cut_keys(patch, *split)
        cut = plan.plan_attention(runs, [1000 * i for i in range(len(runs))], rows_per_task)
    tasks = [plan.Task(*numbers) for numbers in cut.tasks.tolist()]
    sums = [plan.Merge(*numbers) for numbers in cut.merges.tolist()]
    places = {merge.row: merge for merge in sums}
    assert len(places) == len(sums), "a row's output is written once"
    merges: dict[int, plan.Merge | None] = {}
    seen = set()
    for task in tasks:
        assert 1 <= task.num_rows <= rows_per_task
        assert task.first_key < task.stop_key
        run = runs[task.slots_start // 1000]
        assert task.first_slot == (-1 if run.contiguous_start is None else run.contiguous_start)
        assert task.position == run.first_position + task.row - run.row_start
        for place, row in enumerate(range(task.row, task.row + task.num_rows)):
            for key in range(task.first_key, task.stop_key):
                assert (row, key) not in seen
                seen.add((row, key))
            merge = places.pop(row, None) if task.first_key == 0 else merges.get(row)
            merges[row] = merge
            assert (merge is None) == (task.partial == -1)
            if merge is not None:
                assert merge.place == place
                assert 0 <= task.partial - merge.first_partial < merge.num_partials
    assert not places, "what is summed has tasks"
    for run in runs:
        for row in range(run.row_start, run.row_stop):
            position = run.first_position + row - run.row_start
            assert all((row, key) in seen for key in range(position + 1))
    assert cut.num_partials == sum(m.num_partials for m in sums if m.place == 0)


def test_a_run_of_a_graph_is_cut_as_without_one():
    """Graphs have no launch for long runs, whose blocks are others, and so their bits."""
    assert LONGEST_WALK <= plan.SPLIT_ROWS


def plan_by_hand(
    runs: Sequence[AttentionRun], slots_starts: Sequence[int], rows_per_task: int
) -> tuple[list[plan.Task], list[plan.Merge]]:
    """The same tasks and sums, one after the other."""
    tasks: list[plan.Task] = []
    merges: list[plan.Merge] = []
    num_partials = 0
    for run, start in zip(runs, slots_starts, strict=True):
        for row in range(run.row_start, run.row_stop, rows_per_task):
            num_rows = min(rows_per_task, run.row_stop - row)
            position = run.first_position + row - run.row_start
            num_keys = position + num_rows
            step = plan.FEW_KEYS if run.num_rows <= plan.FEW_ROWS else plan.SPLIT_KEYS
            while num_keys > plan.MOST_STRETCHES * step:
                step *= 2
            step = num_keys if run.num_rows > plan.SPLIT_ROWS else step
            count = -(-num_keys // step)
            if count > 1:
                merges += [plan.Merge(row + i, i, num_partials, count) for i in range(num_rows)]
            first = -1 if run.contiguous_start is None else run.contiguous_start
            for a in range(0, num_keys, step):
                partial = num_partials + a // step if count > 1 else -1
                stop = min(a + step, num_keys)
                tasks.append(plan.Task(row, num_rows, position, start, a, stop, partial, first))
            num_partials += count if count > 1 else 0
    return tasks, merges


@given(
    batch=batches(),
    split=st.sampled_from([(8, 4), (16, 64), (512, 256)]),
    rows_per_task=st.sampled_from([1, 2, 5, 16]),
)
def test_a_plan_is_the_one_made_by_hand(batch, split, rows_per_task):
    """In order too: bits follow from the order of parts, and a buffer is filled in order."""
    runs, _ = batch
    starts = [7 * i - 3 for i in range(len(runs))]
    with pytest.MonkeyPatch.context() as patch:
        cut_keys(patch, *split)
        cut = plan.plan_attention(runs, starts, rows_per_task)
        tasks, merges = plan_by_hand(runs, starts, rows_per_task)
    assert [plan.Task(*numbers) for numbers in cut.tasks.tolist()] == tasks
    assert [plan.Merge(*numbers) for numbers in cut.merges.tolist()] == merges
    assert cut.num_partials == sum(task.partial >= 0 for task in tasks)
    assert cut.tasks.flags.c_contiguous
    assert cut.merges.flags.c_contiguous
    falling = cut.longest_first().tasks.tolist()
    assert sorted(falling) == sorted(map(list, tasks))
    keys = [task[5] - task[4] for task in falling]
    assert keys == sorted(keys, reverse=True)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 8, 256])
def test_stretches_are_the_runs_own_and_not_too_many(num_rows):
    """No other run takes part in how one is cut, nor how many rows share a forward."""
    for num_keys in (1, 127, 128, 129, 4096, 4097, 70_000, 300_000):
        step = plan.stretch_keys(num_rows, num_keys)
        least = plan.FEW_KEYS if num_rows <= plan.FEW_ROWS else plan.SPLIT_KEYS
        assert num_keys <= plan.MOST_STRETCHES * step
        assert step == least or 2 * num_keys > plan.MOST_STRETCHES * step
    assert plan.stretch_keys(plan.SPLIT_ROWS + 1, 5000) == 5000


def test_the_kernels_bits_do_not_depend_on_other_runs_or_places(monkeypatch):
    cut_keys(monkeypatch, 32, 256)
    query, keys, values = tensors(50, 6, 3, 21, torch.float32)
    moved = torch.randperm(NUM_SLOTS)
    there = torch.empty_like(keys), torch.empty_like(values)
    there[0][moved], there[1][moved] = keys, values
    spans = ((0, 1, 100), (3, 36, 60), (40, 50, 0))
    runs = [AttentionRun.over(a, b, n, torch.arange(n + b - a)) for a, b, n in spans]
    together = by_kernel(query, tuple(runs), keys, values, scale=0.2)
    for run in runs:
        alone = AttentionRun.over(run.row_start, run.row_stop, run.first_position, moved[run.slots])
        rows = slice(run.row_start, run.row_stop)
        got = by_kernel(query, [alone], *there, scale=0.2)
        assert torch.equal(got[rows], together[rows])
