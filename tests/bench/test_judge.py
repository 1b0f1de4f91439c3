"""The judge that is kept beside the tests loads, and is what its page says."""

from __future__ import annotations

from pathlib import Path

import torch

from hypic_sdk.bench.subject import load_subject
from hypic_sdk.demo import reader_path
from hypic_sdk.demo.eight_bits import keep_in_eight_bits
from hypic_sdk.demo.evaluate import load_reader
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


def test_a_training_that_goes_on_from_it_has_the_weights_that_are_served() -> None:
    served = load_subject(str(JUDGE), "cpu").model
    reader = load_reader(JUDGE, "cpu")
    embedding = reader.model.embed_tokens.weight
    alike = [one for one in served.parameters() if one.shape == embedding.shape]
    assert any(torch.equal(one.float(), embedding) for one in alike)


def test_the_packaged_reader_in_eight_bits_is_near_and_loads(tmp_path: Path) -> None:
    keep_in_eight_bits(reader_path(), tmp_path)
    load_subject(str(tmp_path), "cpu")
    before, after = (load_reader(path, "cpu").state_dict() for path in (reader_path(), tmp_path))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        error = (after[name] - weight).norm() / weight.norm()
        assert error < 0.04, name
    sizes = [
        sum(p.stat().st_size for p in f.glob("*.safetensors")) for f in (reader_path(), tmp_path)
    ]
    assert sizes[1] < 0.55 * sizes[0]
