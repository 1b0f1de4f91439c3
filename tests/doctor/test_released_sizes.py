"""The plan for models as large as released ones, from headers alone: nothing of them is here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hypic_sdk.config import MIB, EngineConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.doctor.examine import examine_headers
from hypic_sdk.models.headers import StoredTensor
from hypic_sdk.models.loader import ModelFiles, load_config

GIB = 1024 * MIB
# fields of the configurations as released; what is not said has transformers' defaults
RELEASED: dict[str, tuple[dict[str, Any], float]] = {
    "Qwen3.5-0.8B": (
        {
            "model_type": "qwen3_5_text",
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "linear_num_value_heads": 16,
            "intermediate_size": 3584,
            "tie_word_embeddings": True,
        },
        0.75e9,
    ),
    # 69.7 GB in 16 bits
    "Qwen3.5-35B-A3B": ({"model_type": "qwen3_5_moe_text"}, 34.66e9),
    "Qwen3-Next-80B-A3B": ({"model_type": "qwen3_next"}, 79.67e9),
}


def planned(name: str, folder: Path, **store: int) -> Any:
    """The report for a folder that has all of a checkpoint but its shards."""
    fields, _ = RELEASED[name]
    text = {**fields, "dtype": "bfloat16", "max_position_embeddings": 262_144}
    (folder / "config.json").write_text(json.dumps(text))
    for path in reader_path().glob("tokenizer*"):
        shutil.copy(path, folder)
    loaded = load_config(folder)
    shard = folder / "model.safetensors"
    stored = {
        tensor: [StoredTensor(tensor, place.shape, "BF16", shard)]
        for tensor, place in loaded.module.checkpoint_plan(loaded.config).places.items()
    }
    files = ModelFiles(folder, folder / "config.json", (shard,), None)
    config = EngineConfig(device="cpu", dtype="bfloat16", store=StoreConfig(**store))
    return examine_headers(files, stored, config)


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_and_bytes_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    report = planned(name, tmp_path, budget_bytes=4 * GIB)
    parameters = report.identity.num_parameters
    assert parameters == pytest.approx(RELEASED[name][1], rel=0.01)
    # decays alone are wider than 16 bits
    assert 2 * parameters <= report.memory.weights_bytes < 2.0001 * parameters
    assert all(law.holds for law in report.laws)


def test_a_segment_of_a_thousand_tokens_takes_what_the_design_allows(tmp_path: Path) -> None:
    """Design 13: at most 112 MiB on the 35B, in fp16 transitions and fp32 states."""
    memory = planned("Qwen3.5-35B-A3B", tmp_path, budget_bytes=60 * GIB).memory
    [cost] = [cost for cost in memory.segments if cost.num_tokens == 1024]
    assert 100 * MIB < cost.num_bytes <= 112 * MIB
    assert [cost.num_tokens for cost in memory.segments] == [256, 1024, 4096, 16384]
    assert cost.fits * cost.num_bytes <= 60 * GIB


def test_more_than_there_is_is_noted(tmp_path: Path) -> None:
    report = planned("Qwen3-Next-80B-A3B", tmp_path, budget_bytes=2**44)
    assert any("MiB are free here now" in note for note in report.notes)
    assert not report.memory.fits
