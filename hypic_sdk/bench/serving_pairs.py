"""What building (T, S) adds to a cold forward, by each way to build it, and how exact each is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch

from hypic_sdk.bench.fla_pair import FlaPair, GatedDeltaOps, fla_ops
from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.scores import relative_l2
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_layer import (
    Slabs,
    cold_runs,
    exact_pair,
    first_recurrence,
    norm_notes,
    times,
)
from hypic_sdk.bench.serving_limits import Needs
from hypic_sdk.bench.serving_model import Bench
from hypic_sdk.bench.serving_report import Absent, Row
from hypic_sdk.bench.serving_targets import TARGETS
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.backend import picked_choices
from hypic_sdk.kernels.items import ColdRun, Item, ItemKind
from hypic_sdk.kernels.live_scan import reference as live_reference
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.segment_scan import reference as segment_reference
from hypic_sdk.kernels.segment_scan.op import segment_scan

CASES = (("one 4k segment", 1, 4096), ("eight 1k segments", 8, 1024))


@dataclass(frozen=True, slots=True)
class PairCosts:
    """Milliseconds over all linear layers that the pairs add to plain scans of the same rows."""

    extra_ms: tuple[float, ...]
    notes: dict[str, Any]


@final
class _OwnWay:
    """Our ops over one layer: the chosen implementation, or the definition in torch."""

    def __init__(
        self, recurrence: Recurrence, runs: tuple[ColdRun, ...], *, by_definition: bool = False
    ) -> None:
        self._inputs = recurrence.scan_inputs()
        self._runs = runs
        self._by_definition = by_definition
        self._slabs = Slabs(recurrence, len(runs), torch.float16)
        self._out = torch.empty_like(recurrence.value, memory_format=torch.contiguous_format)
        self._items = tuple(
            item
            for run in runs
            for item in (Item(ItemKind.LOAD), Item(ItemKind.RUN, run.row_start, run.row_stop))
        )

    def plain(self) -> None:
        """Outputs alone."""
        states, transitions = self._slabs.states, self._slabs.transitions
        if not self._by_definition:
            live_scan(self._inputs, self._items, states, transitions, out_LHV=self._out)
            return
        live_reference.live_scan(
            *(self._inputs, self._items, states, transitions, self._out),
            gap_rotation=None,
            use_transition=True,
        )

    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        """T and S of every interior, as stored."""
        states, transitions = self._slabs.states, self._slabs.transitions
        if self._by_definition:
            segment_reference.segment_scan(
                *(self._inputs, self._runs, states, transitions, None, None, self._out)
            )
        else:
            segment_scan(self._inputs, self._runs, states, transitions, out_LHV=self._out)
        return transitions, states


@final
class _FlaWay:
    """The library's op over the same rows; T is rounded as a store keeps it."""

    def __init__(
        self, ops: GatedDeltaOps, recurrence: Recurrence, runs: tuple[ColdRun, ...]
    ) -> None:
        self._scans = FlaPair(ops, recurrence.scan_inputs(), runs)

    def plain(self) -> None:
        """Outputs alone."""
        self._scans.plain()

    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        """T and S of every interior."""
        _, transitions, states = self._scans.pair()
        return transitions.half(), states


Way = _OwnWay | _FlaWay


def costs_of(bench: Bench, way: Way, exact: tuple[torch.Tensor, torch.Tensor]) -> PairCosts:
    """Of a way to scan one layer, times the number of linear layers; and how exact T and S are."""
    with picked_choices() as picked:
        with_pair = times(bench, way.pair)
        plain = times(bench, way.plain)
    base = statistics.median(plain)
    errors = {
        f"error_{name}": relative_l2(got, want)
        for name, got, want in zip("TS", way.pair(), exact, strict=True)
    }
    notes = {
        "scan_ms_a_layer": statistics.median(with_pair),
        "plain_scan_ms_a_layer": base,
        "percent_of_plain_scan": 100 * (statistics.median(with_pair) - base) / base,
        **errors,
        **norm_notes(exact[0]),
        **{op: choice.implementation for op, choice in picked.items()},
    }
    layers = bench.model.spec.num_linear
    return PairCosts(tuple(layers * (ms - base) for ms in with_pair), notes)


MakeWay = Callable[[Recurrence, tuple[ColdRun, ...]], Way]


def _rows(bench: Bench, suffix: str, make: MakeWay) -> Iterator[Row | Absent]:
    """Shares of a cold forward without any pair."""
    for case, how_many, length in CASES:
        name, count = f"building (T, S), {case}{suffix}", bench.sizes.tokens(length)
        cold = Needs(count, reply_tokens=0, num_requests=0, num_documents=how_many,
                     document_tokens=count)  # fmt: skip
        if absent := bench.absent(name, cold):
            yield absent
            continue
        lengths = [count] * how_many
        recurrence = first_recurrence(bench, bench.tokens(4000, sum(lengths)))
        runs = cold_runs(lengths)
        exact = exact_pair(recurrence, runs)
        own = costs_of(bench, _OwnWay(recurrence, runs), exact)
        costs = own if make is _OwnWay else costs_of(bench, make(recurrence, runs), exact)
        forward_ms = _forward_ms(bench, how_many, count)
        without_ms = max(1e-6, forward_ms - statistics.median(own.extra_ms))
        shares = [100 * ms / without_ms for ms in costs.extra_ms]
        notes = {"forward_ms": forward_ms, **costs.notes}
        yield Row(name, "%", Spread.of(shares), target=TARGETS.get(name), notes=notes)


def _forward_ms(bench: Bench, how_many: int, count: int) -> float:
    """A cold forward of such segments, pairs and all."""
    forwards = [
        bench.warm(bench.engine(), bench.segments(bench.fresh_seed(), how_many, count))
        for _ in range(3)
    ]
    return Spread.of(forwards[1:]).median


def pair_cost(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """The share of a cold forward that goes into (T, S)."""
    del floors
    yield from _rows(bench, "", _OwnWay)


def pair_by_torch(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """The same by the definition in torch, where a kernel runs otherwise."""
    del floors
    if bench.device.type == "cpu":
        yield Absent("building (T, S), torch", "on a CPU it is the row above")
        return

    def by_torch(recurrence: Recurrence, runs: tuple[ColdRun, ...]) -> Way:
        return _OwnWay(recurrence, runs, by_definition=True)

    yield from _rows(bench, ", torch", by_torch)


def pair_by_fla(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """The same by the public op of flash-linear-attention: way B of design 3.2."""
    del floors
    ops = fla_ops(bench.device)
    if isinstance(ops, str):
        yield Absent("building (T, S), FLA way B", ops)
        return
    found = ops

    def by_fla(recurrence: Recurrence, runs: tuple[ColdRun, ...]) -> Way:
        return _FlaWay(found, recurrence, runs)

    yield from _rows(bench, ", FLA way B", by_fla)
