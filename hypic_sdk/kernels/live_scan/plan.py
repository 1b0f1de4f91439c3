"""Items as a table that a kernel walks: launches, and the long runs between them.

A sequence is what stands between two LOADs.  Sequences that do not touch each other's slots go into
one launch, side by side; where one reads or writes what another one of the launch writes, it waits
for the next.  A sequence is broken at every run that is too long to walk: its state then lies in a
work buffer, at the sequence's number, while the run goes through the tiled scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hypic_sdk.kernels.items import NO_SLOT, Item, ItemKind

# rows up to which a run is walked token by token: a longer one takes launches of its own, so that
# its forward is no single graph
LONGEST_WALK = 256
FIELDS = 7  # numbers in a table row
WORK_SLOT = -2  # of a LOAD or SAVE: the sequence's own row of the work buffer


class LongRun(NamedTuple):
    """Rows [start, stop) of a sequence whose state lies in row `sequence` of the work buffer."""

    sequence: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Table rows [first, last) of each of its sequences, and the long runs that follow them."""

    sequences: tuple[int, ...]  # rows of the work buffer
    bounds: tuple[tuple[int, int], ...]
    long_runs: tuple[LongRun, ...]


@dataclass(frozen=True, slots=True)
class WalkPlan:
    """All launches of a call, in order."""

    table: tuple[tuple[int, ...], ...]
    launches: tuple[Launch, ...]
    gap_starts: tuple[int, ...]  # start position of the SEGMENT of each gap, by its number
    num_sequences: int


def plan_walk(items: Sequence[Item], longest_run: int) -> WalkPlan:
    """Cut items into launches.

    Args:
        longest_run: rows up to which a run is walked.
    """
    sequences = _sequences(items)
    rows: list[tuple[int, ...]] = []
    gap_starts: list[int] = []
    launches: list[Launch] = []
    for wave in _waves(sequences):
        pieces = {index: _pieces(sequences[index], index, longest_run) for index in wave}
        for level in range(max(map(len, pieces.values()))):
            numbers, bounds, long_runs = [], [], []
            for index, own in pieces.items():
                if level >= len(own):
                    continue
                steps, long_run = own[level]
                first = len(rows)
                rows += [_row(item, gap_starts) for item in steps]
                numbers.append(index)
                bounds.append((first, len(rows)))
                if long_run is not None:
                    long_runs.append(long_run)
            launches.append(Launch(tuple(numbers), tuple(bounds), tuple(long_runs)))
    return WalkPlan(tuple(rows), tuple(launches), tuple(gap_starts), len(sequences))


def _sequences(items: Sequence[Item]) -> list[list[Item]]:
    sequences: list[list[Item]] = []
    for item in items:
        if item.kind == ItemKind.LOAD:
            sequences.append([])
        sequences[-1].append(item)
    return sequences


def _waves(sequences: list[list[Item]]) -> list[list[int]]:
    """Sequences by launch; one waits for all before it as soon as it waits for any."""
    waves: list[list[int]] = []
    read: set[int] = set()
    written: set[int] = set()
    for index, steps in enumerate(sequences):
        reads = {s.slot for s in steps if s.kind in (ItemKind.LOAD, ItemKind.GAP)} - {NO_SLOT}
        writes = {s.slot for s in steps if s.kind == ItemKind.SAVE}
        if not waves or written & (reads | writes) or read & writes:
            waves.append([])
            read, written = set(), set()
        waves[-1].append(index)
        read |= reads
        written |= writes
    return waves


def _pieces(
    steps: list[Item], index: int, longest_run: int
) -> list[tuple[list[Item], LongRun | None]]:
    """The steps up to each long run, with that run; the last piece has none."""
    pieces: list[tuple[list[Item], LongRun | None]] = []
    own: list[Item] = []
    written: set[int] = set()

    def end_piece(long_run: LongRun | None) -> list[Item]:
        pieces.append(([*own, Item(ItemKind.SAVE, slot=WORK_SLOT)], long_run))
        return [Item(ItemKind.LOAD, slot=WORK_SLOT)]

    for step in steps:
        if step.kind == ItemKind.RUN and step.stop - step.start > longest_run:
            own = end_piece(LongRun(index, step.start, step.stop))
            continue
        if step.kind == ItemKind.GAP and step.slot in written:
            own = end_piece(None)  # what one launch wrote, another one reads
        if step.kind == ItemKind.SAVE:
            written.add(step.slot)
        own.append(step)
    pieces.append((own, None))
    return pieces


def _row(item: Item, gap_starts: list[int]) -> tuple[int, ...]:
    """kind; start and stop of a run; slots, length and number of a gap."""
    number = 0
    if item.kind == ItemKind.GAP:
        number = len(gap_starts)
        gap_starts.append(item.start_position)
    spans = (item.start, item.stop, item.slot, item.transition_slot, item.num_tokens)
    return (int(item.kind), *spans, number)
