"""Items as a table that a kernel walks: launches, and the long runs between them.

A sequence is what stands between two LOADs.  Sequences that do not touch each other's slots go into
one launch, side by side; where one reads or writes what another one of the launch writes, it waits
for the next.  A sequence is broken at every run that is too long to walk: its state then lies in a
work buffer, at the sequence's number, while the run goes through the tiled scan.

Sequences with gaps or with runs of more than a few rows stand in a second table as well, for the
kernel that takes tiles instead of rows.  A step of it is a gap, a tile and a SAVE, in this order,
each of which may be missing.
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
TILE_ROWS = 16  # a run is cut into tiles from its start on
FEW_ROWS = 2  # a sequence of runs of up to so many rows alone, as in decoding, is in no tiles
WALK_FIELDS = 4  # of a sequence in tiles: its steps [first, last), the slot of LOAD, its number
STEP_FIELDS = 7  # see `Step`
NO_TILE = (0, 0)  # there is a tile where there are steps, though it may have no rows
WORK_SLOT = -2  # of a LOAD or SAVE: the sequence's own row of the work buffer


class LongRun(NamedTuple):
    """Rows [start, stop) of a sequence whose state lies in row `sequence` of the work buffer."""

    sequence: int
    start: int
    stop: int


class Step(NamedTuple):
    """What a sequence in tiles does at once."""

    has_gap: int = 0
    end_row: int = 0  # of a gap
    transition_row: int = 0
    tile: int = 0  # by its number
    first_row: int = 0  # of the batch
    num_rows: int = 0  # of the tile; 0: there is none
    save: int = NO_SLOT


@dataclass(frozen=True, slots=True)
class Launch:
    """Table rows [first, last) of each of its sequences, and the long runs that follow them."""

    sequences: tuple[int, ...]  # rows of the work buffer
    bounds: tuple[tuple[int, int], ...]
    long_runs: tuple[LongRun, ...]
    walks: tuple[tuple[int, ...], ...]  # of the sequences in tiles, WALK_FIELDS each

    @property
    def launched(self) -> list[tuple[int, ...]]:
        """Number and bounds of each sequence."""
        return [(s, *b) for s, b in zip(self.sequences, self.bounds, strict=True)]

    @property
    def stepped(self) -> list[tuple[int, ...]]:
        """The same of those that are in no tiles."""
        in_tiles = {walk[-1] for walk in self.walks}
        return [row for row in self.launched if row[0] not in in_tiles]


@dataclass(frozen=True, slots=True)
class WalkPlan:
    """All launches of a call, in order."""

    table: tuple[tuple[int, ...], ...]
    launches: tuple[Launch, ...]
    gap_starts: tuple[int, ...]  # start position of the SEGMENT of each gap, by its number
    num_sequences: int
    tiles: tuple[tuple[int, int], ...]  # first row and rows of each, by its number
    steps: tuple[Step, ...]


def plan_walk(items: Sequence[Item], longest_run: int) -> WalkPlan:
    """Cut items into launches.

    Args:
        longest_run: rows up to which a run is walked.
    """
    sequences = _sequences(items)
    rows: list[tuple[int, ...]] = []
    gap_starts: list[int] = []
    tiles: list[tuple[int, int]] = []
    tile_steps: list[Step] = []
    launches: list[Launch] = []
    for wave in _waves(sequences):
        pieces = {index: _pieces(sequences[index], index, longest_run) for index in wave}
        for level in range(max(map(len, pieces.values()))):
            numbers, bounds, long_runs, walks = [], [], [], []
            for index, own in pieces.items():
                if level >= len(own):
                    continue
                steps, long_run = own[level]
                first = len(rows)
                rows += [_row(item, gap_starts) for item in steps]
                numbers.append(index)
                bounds.append((first, len(rows)))
                if not _is_stepped(steps):
                    first = len(tile_steps)
                    tile_steps += _tile_steps(steps, tiles)
                    walks.append((first, len(tile_steps), steps[0].slot, index))
                if long_run is not None:
                    long_runs.append(long_run)
            launches.append(Launch(tuple(numbers), tuple(bounds), tuple(long_runs), tuple(walks)))
    return WalkPlan(
        tuple(rows),
        tuple(launches),
        tuple(gap_starts),
        len(sequences),
        tuple(tiles or [NO_TILE] * bool(tile_steps)),
        tuple(tile_steps),
    )


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


def _is_stepped(steps: Sequence[Item]) -> bool:
    """Whether tiles would not pay: a few rows and nothing else."""
    return all(step.kind != ItemKind.GAP and step.stop - step.start <= FEW_ROWS for step in steps)


def _tile_steps(steps: Sequence[Item], tiles: list[tuple[int, int]]) -> list[Step]:
    """The steps of a sequence behind its LOAD; its tiles are put behind the others."""
    found = [Step()]

    def extend(is_free: bool, **fields: int) -> None:
        if not is_free:
            found.append(Step())
        found[-1] = found[-1]._replace(**fields)

    for item in steps[1:]:
        last = found[-1]
        if item.kind == ItemKind.GAP:
            rows = {"end_row": item.slot, "transition_row": item.transition_slot}
            extend(last == Step(), has_gap=1, **rows)
        elif item.kind == ItemKind.SAVE:
            extend(last.save == NO_SLOT, save=item.slot)
        else:
            for row in range(item.start, item.stop, TILE_ROWS):
                num_rows, last = min(TILE_ROWS, item.stop - row), found[-1]
                is_free = not last.num_rows and last.save == NO_SLOT
                extend(is_free, tile=len(tiles), first_row=row, num_rows=num_rows)
                tiles.append((row, num_rows))
    return found


def _row(item: Item, gap_starts: list[int]) -> tuple[int, ...]:
    """kind; start and stop of a run; slots, length and number of a gap."""
    number = 0
    if item.kind == ItemKind.GAP:
        number = len(gap_starts)
        gap_starts.append(item.start_position)
    spans = (item.start, item.stop, item.slot, item.transition_slot, item.num_tokens)
    return (int(item.kind), *spans, number)
