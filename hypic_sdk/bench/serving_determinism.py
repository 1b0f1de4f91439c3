"""What each mode of determinism costs: some rows under each, and their times over the default's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_model import Bench
from hypic_sdk.bench.serving_report import Absent, Row, over
from hypic_sdk.bench.serving_rows import cold_segments, decode_steps, hits_4x4k
from hypic_sdk.config import Determinism

# assembly, the cold pass, decode; targets hold in the default mode, whose own rows have them
MEASURED = (hits_4x4k, cold_segments, decode_steps(1), decode_steps(32))


def determinism_costs(bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """The rows of each mode, and over those of the device's default, all of this run."""
    yield from costs_over(bench.engine().describe().settings.determinism, bench, floors)


def costs_over(default: Determinism, bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """Rows of the default, then of each other mode with its times over them, strictest first.

    The default is measured again, so that a mode's share tells of the mode alone: its first rows
    are of the run's beginning, when the process had run nothing else, and these are as late in it
    as those of the other modes.
    """
    usual = []
    for row in _rows(default, bench, floors):
        yield _named(row, default, ", measured again")
        usual.append(row)
    for mode in reversed(Determinism):
        if mode is not default:
            own = []
            for row in _rows(mode, bench, floors):
                yield _named(row, mode)
                own.append(row)
            yield from (
                _cost(f"deterministic={mode.value} over {default.value}", one, base)
                for one, base in zip(own, usual, strict=True)
            )


def _rows(mode: Determinism, bench: Bench, floors: Floors) -> Iterator[Row | Absent]:
    """Engines of two modes are never there at once: each row asks for its own."""
    for measure in MEASURED:
        with bench.under(mode):
            [row] = measure(bench, floors)
        yield row


def _named(row: Row | Absent, mode: Determinism, more: str = "") -> Row | Absent:
    """With its mode, without a target, and in no figure."""
    name = f"{row.name}, deterministic={mode.value}{more}"
    if isinstance(row, Absent):
        return replace(row, name=name)
    return replace(row, name=name, target=None, place=None)


def _cost(words: str, own: Row | Absent, usual: Row | Absent) -> Row | Absent:
    """The time that a mode takes, in percent of the default's; also where rows tell a speed."""
    name = f"{words}, {usual.name}"
    if isinstance(own, Absent) or isinstance(usual, Absent):
        return Absent(name, "it is a row of both modes over each other")
    is_time = usual.is_upper
    ratio = over(own.found, usual.found) if is_time else over(usual.found, own.found)
    spread = Spread(100 * ratio.minimum, 100 * ratio.median, 100 * ratio.maximum, ratio.num_runs)
    return Row(name, "% of the time", spread)
