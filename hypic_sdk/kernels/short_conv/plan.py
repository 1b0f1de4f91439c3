"""Where each row's history lies, as numbers: worked out once on the host for all layers.

A *place* is an input row (0 and up), nothing (`NOTHING`, zeros), or a row of a tail slab as it was
before the call: -2 - t for row t of the tail slab, its slots and the W-1 inputs of each counted
through, and the work slab's rows behind them.  What a call saves and reads again is resolved to
where it came from, so that no reader waits for a writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from hypic_sdk.kernels.items import NO_SLOT, ColdRun, Item, ItemKind

NOTHING = -1


@dataclass(frozen=True, slots=True)
class ConvPlan:
    """One call, whatever its layer."""

    spans: tuple[tuple[int, int], ...]  # rows that are run
    patches: tuple[tuple[int, int, int], ...]  # row, tap, place: taps that are no row of the span
    tails: dict[int, tuple[int, ...]]  # slot: the places of its new W-1 inputs, oldest first
    work_tails: dict[int, tuple[int, ...]]


def plan_conv(
    items: Sequence[Item], cold_runs: Sequence[ColdRun], width: int, num_slots: int
) -> ConvPlan:
    """Cold runs, then items in order.

    Args:
        width: W; tap W-1 is the token itself.
        num_slots: rows of the tail slab.
    Raises:
        ValueError: rows that are no run; `places_of` looks whether a run reaches beyond the batch.
    """
    builder = _Builder(width, num_slots)
    for run in cold_runs:
        builder.cold(run)
    history = (NOTHING,) * (width - 1)
    for item in items:
        if item.kind == ItemKind.RUN:
            history = builder.run(item.start, item.stop, history)
        elif item.kind == ItemKind.SAVE:
            builder.tails[item.slot] = history
        else:
            history = builder.tail(item.slot)
    return ConvPlan(tuple(builder.spans), tuple(builder.patches), builder.tails, builder.work_tails)


@final
@dataclass(slots=True)
class _Builder:
    width: int
    num_slots: int
    spans: list[tuple[int, int]] = field(default_factory=list)
    patches: list[tuple[int, int, int]] = field(default_factory=list)
    tails: dict[int, tuple[int, ...]] = field(default_factory=dict)
    work_tails: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def tail(self, slot: int) -> tuple[int, ...]:
        """What a LOAD or GAP finds in a slot."""
        if slot == NO_SLOT:
            return (NOTHING,) * (self.width - 1)
        return self.tails.get(slot, self._row(slot))

    def _row(self, slot: int) -> tuple[int, ...]:
        first = -2 - slot * (self.width - 1)
        return tuple(range(first, first - (self.width - 1), -1))

    def run(self, start: int, stop: int, history: tuple[int, ...]) -> tuple[int, ...]:
        """Run rows behind a history; the history behind them."""
        if not 0 <= start <= stop:
            raise ValueError(f"rows [{start}, {stop}) are no run")
        if start == stop:
            return history
        self.spans.append((start, stop))
        window = (*history, *range(start, min(stop, start + self.width - 1)))
        for row in range(start, min(stop, start + self.width - 1)):
            for tap in range(self.width - 1 - (row - start)):
                self.patches.append((row, tap, window[row - start + tap]))
        return self.window(start, history, stop - start)

    def window(self, start: int, history: tuple[int, ...], first: int) -> tuple[int, ...]:
        """The W-1 inputs before token `first` of a run, counted from its start."""
        whole = range(first - (self.width - 1), first)
        return tuple(start + t if t >= 0 else history[t + self.width - 1] for t in whole)

    def cold(self, run: ColdRun) -> None:
        """Run a cold stretch, and keep the tails that it leaves."""
        history = self.tail(NO_SLOT)
        if run.offset:
            row = self._row(self.num_slots + run.work_slot)
            history = self.work_tails.get(run.work_slot, row)
        end = self.run(run.row_start, run.row_stop, history)
        if run.closes_interior:
            first = run.num_tokens - run.tail_tokens - run.offset
            self.tails[run.state_slot] = self.window(run.row_start, history, first)
        if run.offset + run.row_stop - run.row_start < run.num_tokens:
            self.work_tails[run.work_slot] = end
