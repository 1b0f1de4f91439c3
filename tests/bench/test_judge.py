"""The judge that is kept beside the tests loads, and is what its page says."""

from __future__ import annotations

from pathlib import Path

from hypic_sdk.bench.subject import load_subject
from hypic_sdk.models.base import LayerKind

JUDGE = Path(__file__).parents[1] / "judge"


def test_the_judge_loads_and_has_one_full_attention_layer() -> None:
    subject = load_subject(str(JUDGE), "cpu")
    layers = subject.model.spec.layers
    assert [i for i, kind in enumerate(layers) if kind is LayerKind.ATTENTION] == [2]
    assert len(layers) == 8
    weights = list(subject.model.parameters())
    assert all(bool(weight.isfinite().all()) for weight in weights)
    assert sum(weight.numel() for weight in weights) > 17_000_000
