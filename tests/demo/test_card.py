"""The model card shows what was measured."""

from __future__ import annotations

import json

import pytest

from hypic_sdk.demo import reader_path
from hypic_sdk.demo.card import BEGIN, END, figures, renewed

METRICS = json.loads((reader_path() / "metrics.json").read_text())
CARD = (reader_path() / "MODEL_CARD.md").read_text()


def test_the_card_shows_the_metrics_beside_it() -> None:
    assert renewed(CARD, METRICS) == CARD


def test_another_measurement_gives_another_card() -> None:
    rows = [dict(row) for row in METRICS["rows"]]
    rows[0]["em"] = 12.345
    changed = renewed(CARD, METRICS | {"rows": rows})
    assert "| 12.3 [" in changed
    assert changed.replace("| 12.3 [", f"| {METRICS['rows'][0]['em']:.1f} [") == CARD


def test_every_arm_has_a_line() -> None:
    text = figures(METRICS)
    for row in METRICS["rows"]:
        assert f"| {row['arm']} | {row['n']} |" in text


@pytest.mark.parametrize("card", ["", BEGIN, END, END + BEGIN])
def test_a_card_without_marks_is_refused(card: str) -> None:
    with pytest.raises(ValueError, match="begin figures"):
        renewed(card, METRICS)
