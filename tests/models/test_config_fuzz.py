"""Mutated config.json of the layouts that are published most: refused by type, or the same logits.

Image-text files, with what is inside of `text_config` and outside of it, and text-only MoE; the
dense and the packed text-only ones are in `test_qwen3_5_config.py` and `test_qwen_moe_config.py`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models.config_fields import NEUTRAL_FIELDS
from hypic_sdk.models.loader import load_model
from tests.closeness import assert_close
from tests.models.oracle import (
    image_text_model,
    image_text_moe_model,
    moe_model,
    oracle_logits,
    save,
    token_ids,
)
from tests.models.test_qwen3_5_config import NASTY
from tests.plain_context import PlainContext

Fields = dict[str, Any]

MAKERS = {"moe": moe_model, "image-text": image_text_model, "image-text moe": image_text_moe_model}
ADDED = [
    *("decoder_sparse_step", "eos_token_id", "full_attention_interval", "hidden_size"),
    *("intermediate_size", "mlp_only_layers", "norm_topk_prob", "num_experts"),
    *("partial_rotary_factor", "quantization_config", "rope_parameters", "rope_scaling"),
    *("rope_theta", "surprise", "text_config", "tie_word_embeddings"),
]
# of images, which no test here has
OF_IMAGES = [
    *("vision_config", "image_token_id", "video_token_id"),
    *("vision_start_token_id", "vision_end_token_id"),
]


@pytest.fixture(scope="module", params=MAKERS)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """A folder, and transformers' class for it."""
    kinds = ["linear_attention", "full_attention"]
    model = MAKERS[request.param](num_hidden_layers=2, layer_types=kinds)
    return save(model, tmp_path_factory.mktemp("checkpoint")), type(model)


@st.composite
def mutations(draw: st.DrawFn, fields: Fields) -> Fields:
    """One to three fields changed, dropped or added, at any level."""
    fields = copy.deepcopy(fields)
    for _ in range(draw(st.integers(1, 3))):
        target, depth = fields, draw(st.integers(0, 3))
        for inner in ("text_config", "rope_parameters")[:depth]:
            if isinstance(target.get(inner), dict):
                target = target[inner]
        name = draw(st.sampled_from([*target, *ADDED]))
        if draw(st.integers(0, 2)) == 0:
            target.pop(name, None)
        else:
            target[name] = copy.deepcopy(draw(NASTY))
    return fields


def for_transformers(fields: Mapping[str, Any], original: Mapping[str, Any]) -> Fields:
    """What is called neutral must make no difference: there, the original values stand."""
    kept = {*NEUTRAL_FIELDS, *OF_IMAGES} & original.keys()
    told = {name: value for name, value in fields.items() if name not in NEUTRAL_FIELDS}
    told |= {name: original[name] for name in kept}
    inner = told.get("text_config")
    if isinstance(inner, dict) and "text_config" in original:
        told["text_config"] = for_transformers(inner, original["text_config"])
    return told


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_mutated_config_is_refused_by_type_or_means_the_same_as_there(
    data: st.DataObject,
    checkpoint: tuple[Path, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    source, kind = checkpoint
    original = json.loads((source / "config.json").read_text())
    fields = data.draw(mutations(original))

    def folder(name: str, content: Mapping[str, Any]) -> Path:
        made = tmp_path_factory.mktemp(name)
        (made / "model.safetensors").symlink_to(source / "model.safetensors")
        (made / "config.json").write_text(json.dumps(content))
        return made

    try:
        model = load_model(folder("mutant", fields), device="cpu", dtype=torch.float32).model
    except ModelFileError:
        event("refused")
        return
    event("loaded")
    oracle = kind.from_pretrained(
        folder("oracle", for_transformers(fields, original)),
        dtype=torch.float32,
        experts_implementation="eager",
    ).eval()
    ids = token_ids(11)
    want = oracle_logits(oracle, ids)
    assert_close("logits", PlainContext().logits(model, ids), want, rel_rms=1e-5)
