"""What each mode of determinism costs, as `bench serving` tells it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from hypic_sdk.bench import serving, serving_determinism, serving_model
from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving_curves import ttft_curves
from hypic_sdk.bench.serving_determinism import costs_over, determinism_costs
from hypic_sdk.bench.serving_docs import SUMMARY
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_model import TINY_SIZES, Bench, random_model
from hypic_sdk.bench.serving_report import Place, Row
from hypic_sdk.bench.serving_rows import other_modes
from hypic_sdk.config import Determinism, EngineConfig
from hypic_sdk.engine.engine import Engine

CPU = torch.device("cpu")
# rows that are told of each mode, and how
DETERMINED = {
    "TTFT, 4 x 4k all hits": "ms",
    "cold prefill, 8 segments of 1.25k": "tokens/s",
    "decode step, batch 1, 4k of context": "ms",
    "decode step, batch 32, 4k of context": "ms",
}
TIMES = {Determinism.OFF: 2.0, Determinism.ENTRIES: 3.0, Determinism.ALL: 4.0}


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    """Settings of all engines that benches make from here on; none while another is held."""
    there: weakref.WeakSet[Engine] = weakref.WeakSet()
    made = []

    def alone(model, fingerprint: str, config: EngineConfig) -> Engine:
        assert not len(there), "the pools of two engines at once"
        engine = Engine(model, fingerprint, config)
        there.add(engine)
        made.append(config)
        return engine

    monkeypatch.setattr(serving_model, "Engine", alone)
    return made


def test_each_mode_is_told_by_an_engine_of_its_own_and_by_its_time(monkeypatch):
    """As on a GPU, whose default is `entries`: a mode that takes longer is more of the time."""

    def measured(name: str, unit: str) -> Callable[[Bench, Floors], Iterator[Row]]:
        def measure(bench: Bench, floors: Floors) -> Iterator[Row]:
            del floors
            time = TIMES[bench.engine().describe().settings.determinism]
            values, is_time = [time, 1.1 * time, 1.2 * time], unit == "ms"
            found = Spread.of(values if is_time else [1 / x for x in values])
            yield Row(name, unit, found, 1.0, is_upper=is_time, place=Place("an arm", 4, 4096))

        return measure

    fakes = [measured(*one) for one in DETERMINED.items()]
    monkeypatch.setattr(serving_determinism, "MEASURED", fakes)
    engines = one_at_a_time(monkeypatch)
    bench = Bench(random_model("tiny", CPU), "tiny", CPU, TINY_SIZES)
    rows = {row.name: row for row in costs_over(Determinism.ENTRIES, bench, Floors.of(bench))}
    want = [f"{base}, deterministic=entries, measured again" for base in DETERMINED]
    for mode in ("all", "off"):
        want += [f"{base}, deterministic={mode}" for base in DETERMINED]
        want += [f"deterministic={mode} over entries, {base}" for base in DETERMINED]
    assert list(rows) == want
    made = [one.determinism for one in engines]
    assert made == [None, Determinism.ENTRIES, Determinism.ALL, Determinism.OFF]
    # targets are of the rows above, in the default; so are the points of a figure
    assert not any(row.target or row.place for row in rows.values())
    for mode, ratio in (("all", 4 / 3), ("off", 2 / 3)):
        for base in DETERMINED:
            row = rows[f"deterministic={mode} over entries, {base}"]
            found = [row.found.minimum, row.found.median, row.found.maximum]
            assert found == pytest.approx([100 * ratio / 1.2, 100 * ratio, 100 * ratio * 1.2])
            assert row.unit == "% of the time"
    assert {name for name in SUMMARY if "deterministic" in name} <= set(rows), "README's"


def test_a_mode_ends_with_its_block():
    bench = Bench(random_model("tiny", CPU), "tiny", CPU, TINY_SIZES)

    def mode() -> Determinism:
        return bench.engine().describe().settings.determinism

    def fail_under(determinism: Determinism) -> None:
        with bench.under(determinism):
            assert mode() is determinism
            raise RuntimeError("a row that fails")

    with pytest.raises(RuntimeError, match="a row that fails"):
        fail_under(Determinism.OFF)
    assert mode() is Determinism.ALL, "a CPU's default"


def test_costs_are_told_behind_the_modes_and_before_what_takes_long():
    modes, costs, *late = (
        serving.ROWS.index(measure)
        for measure in (
            *(other_modes, determinism_costs),
            *(ttft_curves, serving.pair_by_torch, serving.pair_by_fla),
        )
    )
    assert modes < costs < min(late)
