"""Qwen3.5 dense against transformers: same files, same logits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models import qwen3_5
from hypic_sdk.models.base import LayerKind, TransitionKind
from hypic_sdk.models.loader import load_config, load_model
from tests.closeness import assert_close, relative_rms
from tests.models.oracle import (
    SIZES,
    image_text_model,
    oracle_logits,
    save,
    text_model,
    token_ids,
)
from tests.plain_context import PlainContext

# fp32 on both sides; they differ in the order of sums only (design 3.7)
REL_RMS = 1e-5
NUM_TOKENS = 75  # crosses the 64-token tile of transformers' scan

CASES: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "bias": {"attention_bias": True},
    "attention first, twice": {
        "layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"]
    },
    "linear only": {"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2},
    "attention only": {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2},
    "one key head, wide keys": {
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 3,
    },
    "conv of 2, rotary of all": {
        "linear_conv_kernel_dim": 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 1.0,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    },
}


def ours(folder: Path, dtype: torch.dtype = torch.float32) -> qwen3_5.Model:
    model = load_model(folder, device="cpu", dtype=dtype).model
    assert isinstance(model, qwen3_5.Model)
    return model


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_prefill_and_decode_equal_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    oracle = text_model(**changes)
    model = ours(save(oracle, tmp_path))
    ids = token_ids(NUM_TOKENS)
    context = PlainContext()
    assert_close("prefill", context.logits(model, ids), oracle_logits(oracle, ids), rel_rms=REL_RMS)
    more = token_ids(6, seed=1)
    decoded = torch.cat([context.logits(model, [token]) for token in more])
    # transformers' cache needs an attention layer to count positions, and a linear one beside it
    cached = len(set(oracle.config.layer_types)) == 2
    want = oracle_logits(oracle, ids + more, prefill=NUM_TOKENS if cached else None)
    assert_close("decode", decoded, want[NUM_TOKENS:], rel_rms=REL_RMS)


def test_decode_from_the_first_token_equals_transformers(tmp_path: Path) -> None:
    oracle = text_model()
    model = ours(save(oracle, tmp_path))
    ids, context = token_ids(12), PlainContext()
    got = torch.cat([context.logits(model, [token]) for token in ids])
    assert_close("decode", got, oracle_logits(oracle, ids, prefill=1), rel_rms=REL_RMS)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("layout", [text_model, image_text_model])
def test_sharded_bf16_weights_in_both_layouts(layout: Any, tied: bool, tmp_path: Path) -> None:
    """Weights of 16 bits run in fp32 as transformers runs them in fp32."""
    saved = layout(tie_word_embeddings=tied).to(torch.bfloat16)
    save(saved, tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids = token_ids(NUM_TOKENS)
    got = PlainContext().logits(ours(tmp_path), ids)
    assert_close("logits", got, oracle_logits(saved.float(), ids), rel_rms=REL_RMS)


def test_bf16_is_at_most_twice_as_far_from_fp32_as_transformers(tmp_path: Path) -> None:
    """The bound for 16 bits is the error that the oracle makes in the same precision."""
    oracle = text_model()
    folder = save(oracle.to(torch.bfloat16), tmp_path)
    model = ours(folder, torch.bfloat16)
    errors, allowed = [], []
    for seed in range(5):
        ids = token_ids(20, seed)
        truth = oracle_logits(oracle.float(), ids)
        allowed.append(relative_rms(oracle_logits(oracle.to(torch.bfloat16), ids), truth))
        errors.append(relative_rms(PlainContext().logits(model, ids), truth))
    assert sorted(errors)[2] <= 2 * sorted(allowed)[2], (errors, allowed)


def test_decay_parameters_stay_wide(tmp_path: Path) -> None:
    folder = save(text_model(), tmp_path)
    for dtype, gates in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        model = ours(folder, dtype)
        found = {
            name.rpartition(".")[2]: parameter.dtype for name, parameter in model.named_parameters()
        }
        assert found["A_log"] == found["dt_bias"] == gates
        assert found["weight"] == dtype
        hidden = PlainContext().extend(model, [1, 2, 3])
        assert hidden.dtype == dtype
        assert model.logits(hidden, row_independent=False).dtype == gates


def test_spec_tells_shapes(tmp_path: Path) -> None:
    spec = ours(save(text_model(), tmp_path)).spec
    assert spec.layers == (LayerKind.LINEAR,) * 3 + (LayerKind.ATTENTION,)
    linear, attention = spec.linear, spec.attention
    assert (linear.num_heads, linear.key_size, linear.value_size) == (6, 6, 10)
    assert (linear.conv_channels, linear.conv_width) == (2 * 2 * 6 + 6 * 10, 4)
    assert linear.transition is TransitionKind.DENSE
    assert linear.key_rotation is None
    assert attention is not None
    assert (attention.num_query_heads, attention.num_kv_heads, attention.head_size) == (6, 2, 16)
    assert attention.rotary is not None
    assert (attention.rotary.theta, attention.rotary.rotary_dims) == (10000.0, 4)
    assert (spec.vocab_size, spec.max_context_tokens, spec.eos_token_ids) == (97, 512, (5,))


def test_no_attention_means_no_attention_shape(tmp_path: Path) -> None:
    model = ours(save(text_model(**CASES["linear only"]), tmp_path))
    assert model.spec.attention is None


def test_end_of_text_ids_of_both_files(tmp_path: Path) -> None:
    oracle = text_model()
    oracle.generation_config.eos_token_id = [5, 7]
    assert load_config(save(oracle, tmp_path)).config.eos_token_ids == (5, 7)


def test_vision_and_mtp_are_skipped_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    oracle = image_text_model()
    save(oracle, tmp_path)
    shard = tmp_path / "model.safetensors"
    tensors = load_file(shard)
    num_vision = sum(name.startswith("model.visual.") for name in tensors)
    assert num_vision
    save_file({**tensors, "mtp.fc.weight": torch.full((3, 3), torch.nan)}, shard)
    with caplog.at_level(logging.INFO, logger="hypic_sdk"):
        model = ours(tmp_path)
    lines = [r.getMessage() for r in caplog.records if "skipped" in r.getMessage()]
    assert len(lines) == 1
    assert f"skipped {num_vision + 1} tensors" in lines[0]
    ids = token_ids(9)
    got = PlainContext().logits(model, ids)
    assert_close("logits", got, oracle_logits(oracle, ids), rel_rms=REL_RMS)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_plan_fills_every_element_once(changes: dict[str, Any]) -> None:
    config = qwen3_5.Config.from_hf({"model_type": "qwen3_5_text", **SIZES, **changes})
    parameters = dict(qwen3_5.Model(config, torch.float32).named_parameters())
    written = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for place in qwen3_5.checkpoint_plan(config).places.values():
        written[place.parameter][place.row : place.row + place.shape[0]] += 1
    assert all((count == 1).all() for count in written.values())


def test_both_prefixes_at_once_are_refused(tmp_path: Path) -> None:
    save(text_model(), tmp_path)
    shard = tmp_path / "model.safetensors"
    tensors = load_file(shard)
    tensors["model.language_model.norm.weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, shard)
    with pytest.raises(ModelFileError, match=r"norm\.weight \(stored twice\)"):
        load_model(tmp_path, device="cpu")
