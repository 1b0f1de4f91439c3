"""The table that a kernel walks: every item once, in order; side by side only what may stand so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.kernels.items import NO_SLOT, Item, ItemKind
from hypic_sdk.kernels.live_scan.plan import (
    FEW_ROWS,
    TILE_ROWS,
    WORK_SLOT,
    WalkPlan,
    plan_walk,
)

LOAD, RUN, GAP, SAVE = ItemKind
LONGEST = 4


@st.composite
def batches(draw: st.DrawFn) -> list[Item]:
    """Sequences over few slots, so that they often touch the same; gaps may read any."""
    items, row = [], 0
    slots = st.integers(0, 3)
    for _ in range(draw(st.integers(0, 5))):
        items.append(Item(LOAD, slot=draw(st.sampled_from([NO_SLOT, 0, 1, 2, 3]))))
        for kind in draw(st.lists(st.sampled_from([RUN, GAP, SAVE]), max_size=6)):
            if kind == RUN:
                stop = row + draw(st.integers(0, 2 * LONGEST))
                items.append(Item(RUN, row, stop))
                row = stop
            elif kind == GAP:
                start = draw(st.integers(0, 99))
                items.append(Item(GAP, 0, 0, draw(slots), draw(slots), 5, start))
            else:
                items.append(Item(SAVE, slot=draw(slots)))
    return items


def walked(plan: WalkPlan, launch: int, place: int) -> list[Item]:
    """The items of one sequence of one launch, read back from the table."""
    first, last = plan.launches[launch].bounds[place]
    items = []
    for kind, start, stop, slot, transition_slot, num_tokens, number in plan.table[first:last]:
        position = plan.gap_starts[number] if kind == GAP else 0
        items.append(Item(ItemKind(kind), start, stop, slot, transition_slot, num_tokens, position))
    return items


def split(items: list[Item]) -> list[list[Item]]:
    sequences: list[list[Item]] = []
    for item in items:
        if item.kind == LOAD:
            sequences.append([])
        sequences[-1].append(item)
    return sequences


@given(items=batches())
def test_every_item_is_done_once_and_in_order(items):
    plan = plan_walk(items, LONGEST)
    done: dict[int, list[Item]] = {}
    for index, launch in enumerate(plan.launches):
        for place, sequence in enumerate(launch.sequences):
            own = done.setdefault(sequence, [])
            steps = walked(plan, index, place)
            if own:
                assert steps[0] == Item(LOAD, slot=WORK_SLOT), "goes on from the work buffer"
                steps = steps[1:]
            if steps and steps[-1] == Item(SAVE, slot=WORK_SLOT):
                steps = steps[:-1]
            own += steps
        for run in launch.long_runs:
            done[run.sequence].append(Item(RUN, run.start, run.stop))
    assert [done[index] for index in range(plan.num_sequences)] == split(items)


@given(items=batches())
def test_long_runs_and_no_others_are_left_out(items):
    plan = plan_walk(items, LONGEST)
    for index, launch in enumerate(plan.launches):
        assert all(run.stop - run.start > LONGEST for run in launch.long_runs)
        for place in range(len(launch.sequences)):
            runs = [item for item in walked(plan, index, place) if item.kind == RUN]
            assert all(run.stop - run.start <= LONGEST for run in runs)


@given(items=batches())
def test_what_runs_side_by_side_touches_nothing_of_each_other(items):
    """And no sequence reads in a launch what it wrote there."""
    plan = plan_walk(items, LONGEST)
    for index, launch in enumerate(plan.launches):
        reads, writes = [], []
        for place in range(len(launch.sequences)):
            steps = walked(plan, index, place)
            reads.append({s.slot for s in steps if s.kind in (LOAD, GAP) and s.slot >= 0})
            writes.append({s.slot for s in steps if s.kind == SAVE and s.slot >= 0})
            written: set[int] = set()
            for step in steps:
                assert step.kind != GAP or step.slot not in written
                written |= {step.slot} if step.kind == SAVE else set()
        for a in range(len(writes)):
            for b in range(len(writes)):
                assert a == b or not writes[a] & (writes[b] | reads[b])


def test_sequences_that_do_not_touch_share_a_launch():
    items = [x for i in range(64) for x in (Item(LOAD, slot=i), Item(RUN, i, i + 1))]
    items = [x for i in range(64) for x in (*items[2 * i : 2 * i + 2], Item(SAVE, slot=i))]
    plan = plan_walk(items, LONGEST)
    assert [len(launch.sequences) for launch in plan.launches] == [64]


def in_tiles(plan: WalkPlan, first: int, last: int, slot: int) -> list[Item]:
    """The items that the steps of one sequence stand for, each tile as a run."""
    items = [Item(LOAD, slot=slot)]
    for step in plan.steps[first:last]:
        if step.has_gap:
            items.append(Item(GAP, slot=step.end_row, transition_slot=step.transition_row))
        if step.num_rows:
            assert plan.tiles[step.tile] == (step.first_row, step.num_rows)
            items.append(Item(RUN, step.first_row, step.first_row + step.num_rows))
        if step.save != NO_SLOT:
            items.append(Item(SAVE, slot=step.save))
    return items


def cut_into_tiles(items: list[Item]) -> list[Item]:
    """Runs of at most a tile, from their start on; of a gap only what a step keeps."""
    found = []
    for item in items:
        if item.kind == RUN:
            rows = range(item.start, item.stop, TILE_ROWS)
            found += [Item(RUN, row, min(row + TILE_ROWS, item.stop)) for row in rows]
        elif item.kind == GAP:
            found.append(Item(GAP, slot=item.slot, transition_slot=item.transition_slot))
        else:
            found.append(item)
    return found


@given(items=batches(), longest=st.sampled_from([LONGEST, 3 * TILE_ROWS]), scale=st.integers(1, 9))
def test_steps_are_the_items_of_a_sequence_in_order(items, longest, scale):
    """Of those with a gap or a run of more than a few rows; all others stand among the stepped."""
    items = [item._replace(start=scale * item.start, stop=scale * item.stop) for item in items]
    plan = plan_walk(items, longest)
    seen = []
    for index, launch in enumerate(plan.launches):
        walks = {walk[-1]: walk[:-1] for walk in launch.walks}
        assert len(walks) == len(launch.walks)
        for place, sequence in enumerate(launch.sequences):
            own = walked(plan, index, place)
            runs = [item.stop - item.start for item in own if item.kind == RUN]
            many = any(item.kind == GAP for item in own) or max(runs, default=0) > FEW_ROWS
            assert (sequence in walks) == many
            row = (sequence, *launch.bounds[place])
            assert (row in launch.stepped) == (not many)
            if many:
                assert in_tiles(plan, *walks[sequence]) == cut_into_tiles(own)
                steps = plan.steps[slice(*walks[sequence][:2])]
                assert steps, "a sequence in tiles has a step"
                seen += [step.tile for step in steps if step.num_rows]
    assert seen == [number for number, tile in enumerate(plan.tiles) if tile[1]]
    assert bool(plan.tiles) == bool(plan.steps)
