"""config.json of Qwen3.5: transformers' defaults, and nothing unknown passes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models.base import LayerKind
from hypic_sdk.models.config_fields import NEUTRAL_FIELDS
from hypic_sdk.models.loader import load_config, load_model
from hypic_sdk.models.qwen3_5 import Config
from tests.closeness import assert_close
from tests.models.oracle import (
    SIZES,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    oracle_logits,
    save,
    text_model,
    token_ids,
)
from tests.plain_context import PlainContext

# as published for the 27B, with its own field names
RELEASED: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "image_token_id": 248056,
    "model_type": "qwen3_5",
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "eos_token_id": 248044,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "initializer_range": 0.02,
        "intermediate_size": 17408,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 24,
        "num_hidden_layers": 64,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "use_cache": True,
        "vocab_size": 248320,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
    },
    "tie_word_embeddings": False,
    "transformers_version": "4.57.0.dev0",
    "video_token_id": 248057,
    "vision_config": {"depth": 27, "model_type": "qwen3_5"},
    "vision_end_token_id": 248054,
    "vision_start_token_id": 248053,
}


def of_transformers(text: Qwen3_5TextConfig) -> dict[str, Any]:
    """What our Config must hold, read from transformers' own class."""
    rope = text.rope_parameters
    return {
        "vocab_size": text.vocab_size,
        "width": text.hidden_size,
        "inner": text.intermediate_size,
        "layers": tuple(
            LayerKind.LINEAR if name == "linear_attention" else LayerKind.ATTENTION
            for name in text.layer_types
        ),
        "num_key_heads": text.linear_num_key_heads,
        "num_heads": text.linear_num_value_heads,
        "key_size": text.linear_key_head_dim,
        "value_size": text.linear_value_head_dim,
        "conv_width": text.linear_conv_kernel_dim,
        "eps": text.rms_norm_eps,
        "tied": text.tie_word_embeddings,
        "max_context_tokens": text.max_position_embeddings,
        "attention.num_query_heads": text.num_attention_heads,
        "attention.num_kv_heads": text.num_key_value_heads,
        "attention.head_size": text.head_dim,
        "attention.bias": text.attention_bias,
        "attention.norm_eps": text.rms_norm_eps,
        "attention.rotary.theta": rope["rope_theta"],
        "attention.rotary.rotary_dims": int(text.head_dim * rope["partial_rotary_factor"]),
    }


def of_ours(config: Config, names: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name in names:
        value: Any = config
        for step in name.split("."):
            value = getattr(value, step)
        found[name] = value
    return found


def agree(fields: dict[str, Any], text: Qwen3_5TextConfig) -> None:
    want = of_transformers(text)
    assert of_ours(Config.from_hf(fields), want) == want


def test_every_default_is_that_of_transformers() -> None:
    agree({"model_type": "qwen3_5_text"}, Qwen3_5TextConfig())
    agree({"model_type": "qwen3_5", "text_config": {}}, Qwen3_5Config().text_config)


@pytest.mark.parametrize("name", SIZES)
def test_a_missing_field_means_the_same_as_there(name: str) -> None:
    fields = {key: value for key, value in SIZES.items() if key != name}
    # head counts must still divide each other where the default steps in
    fields |= {"linear_num_value_heads": 16, "num_attention_heads": 16} if "heads" in name else {}
    fields.pop(name, None)
    agree({"model_type": "qwen3_5_text", **fields}, Qwen3_5TextConfig(**fields))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5},
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_theta": 5e5}},
        {"rope_parameters": {"partial_rotary_factor": 1.0}},
        {"rope_theta": 3e5, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}},
        {"partial_rotary_factor": 0.5, "rope_parameters": {"rope_theta": 5e5}},
        {"rope_parameters": {}},
        {"rope_parameters": None, "rope_theta": 5e5},
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_scaling": {"rope_type": "default"}, "rope_theta": 5e5},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta": 3e5},
        {"rope_scaling": {"type": "default"}, "partial_rotary_factor": 0.5},
        {"rope_scaling": {}, "rope_parameters": {"rope_theta": 5e5}},
    ],
    ids=str,
)
def test_rotary_fields_are_read_in_the_same_order(rope: dict[str, Any]) -> None:
    fields = {**SIZES, **rope}
    agree({"model_type": "qwen3_5_text", **fields}, Qwen3_5TextConfig(**copy.deepcopy(fields)))


def test_released_config_is_read() -> None:
    text = Qwen3_5Config(**copy.deepcopy(RELEASED)).text_config
    agree(RELEASED, text)
    config = Config.from_hf(RELEASED)
    assert config.eos_token_ids == (248044,)
    assert (config.attention.rotary.theta, config.attention.rotary.rotary_dims) == (1e7, 64)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"type": "mrope"}, "rope_parameters": {}}, "rope_scaling.type"),
        ({"rope_scaling": {"rope_type": "default"}, "rope_parameters": {}}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "rope_parameters.rope_type"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters.factor"),
        ({"rope_parameters": {"type": "dynamic"}}, "rope_parameters.type"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.full_attention"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"mlp_only_layers": [1]}, "mlp_only_layers"),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "per_layer_config"),
        ({"num_experts": 8}, "num_experts"),
        ({"logit_scale": 2.0}, "logit_scale"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
        ({"architectures": ["Qwen3_5ForSequenceClassification"]}, "architectures"),
        ({"linear_num_value_heads": 5}, "linear_num_value_heads"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor"),
        ({"hidden_size": 36.0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
    ],
    ids=str,
)
def test_what_changes_the_mathematics_is_refused_by_name(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json") as caught:
        Config.from_hf({"model_type": "qwen3_5_text", **SIZES, **changes})
    assert named in caught.value.details["fields"]
    nested = {"model_type": "qwen3_5", "text_config": {**SIZES, **changes}}
    with pytest.raises(ModelFileError) as caught:
        Config.from_hf(nested)
    assert f"text_config.{named}" in caught.value.details["fields"]


NEUTRAL_OUTSIDE = {
    "unsloth_version": "2026.1",
    "unsloth_fixed": True,
    "mtp_num_hidden_layers": 1,
    "ignore_index": -100,
    "hidden_size": RELEASED["text_config"]["hidden_size"],
    "num_hidden_layers": 64,
    "vocab_size": 248320,
}


@pytest.mark.parametrize("name", NEUTRAL_OUTSIDE)
def test_what_is_neutral_inside_or_says_it_again_is_neutral_outside(name: str) -> None:
    want = Config.from_hf(RELEASED)
    assert Config.from_hf({**RELEASED, name: NEUTRAL_OUTSIDE[name]}) == want


@pytest.mark.parametrize("inside", [None, True, False])
@pytest.mark.parametrize("outside", [None, True, False])
def test_whether_embeddings_are_tied_is_said_outside_or_else_inside(
    outside: bool | None, inside: bool | None
) -> None:
    """transformers asks outside alone, and makes up a head that it neither ties nor finds."""

    def said(value: bool | None) -> dict[str, bool]:
        return {} if value is None else {"tie_word_embeddings": value}

    text = {k: v for k, v in RELEASED["text_config"].items() if k != "tie_word_embeddings"}
    rest = {k: v for k, v in RELEASED.items() if k != "tie_word_embeddings"}
    config = Config.from_hf({**rest, **said(outside), "text_config": {**text, **said(inside)}})
    assert config.tied == (outside if outside is not None else bool(inside))
    flat = {**text, "model_type": "qwen3_5_text"}
    assert Config.from_hf({**flat, **said(inside)}).tied == bool(inside)


def test_a_size_left_out_inside_is_its_default_and_may_be_said_outside() -> None:
    fields = {"model_type": "qwen3_5", "text_config": {}}
    assert Config.from_hf({**fields, "hidden_size": 4096}) == Config.from_hf(fields)


@pytest.mark.parametrize(
    "changes", [{"hidden_size": 4096}, {"vocab_size": 248320.0}, {"num_hidden_layers": "64"}]
)
def test_a_size_that_says_something_else_outside_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError) as caught:
        Config.from_hf({**RELEASED, **changes})
    assert caught.value.details["fields"] == list(changes)


def test_all_problems_are_named_at_once() -> None:
    fields = {**SIZES, "num_experts": 8, "head_dim": "x", "rope_parameters": {"factor": 2.0}}
    with pytest.raises(ModelFileError) as caught:
        Config.from_hf({"model_type": "qwen3_5", "text_config": fields, "merger": 1})
    assert set(caught.value.details["fields"]) == {
        "merger",
        "text_config.num_experts",
        "text_config.head_dim",
        "text_config.rope_parameters.factor",
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(text_model(num_hidden_layers=2), tmp_path_factory.mktemp("checkpoint"))


NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.sampled_from([10**6, 2**31, 2**63, 10**30]),
    st.floats(width=32),
    st.text(max_size=6),
    st.just([]),
    st.just({}),
    st.sampled_from(["linear_attention", "gelu", "swish", "silu", "default", "yarn", "bfloat16"]),
    st.lists(st.sampled_from(["linear_attention", "full_attention", "x"]), max_size=3),
    st.lists(st.integers(0, 9), max_size=3),
)


@st.composite
def mutations(draw: st.DrawFn, fields: dict[str, Any]) -> dict[str, Any]:
    """One to three fields changed, dropped, added or moved into an inner object."""
    fields = copy.deepcopy(fields)
    names = [*fields, "rope_scaling", "rope_theta", "full_attention_interval", "surprise", "type"]
    for _ in range(draw(st.integers(1, 3))):
        target = fields
        if draw(st.booleans()) and isinstance(fields.get("rope_parameters"), dict):
            target, names = fields["rope_parameters"], ["rope_type", "rope_theta", "factor", "type"]
        name = draw(st.sampled_from(names))
        if draw(st.integers(0, 3)) == 0:
            target.pop(name, None)
        else:
            target[name] = draw(NASTY)
    return fields


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_mutated_config_is_refused_by_type_or_means_the_same_as_there(
    data: st.DataObject, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    original = json.loads((checkpoint / "config.json").read_text())
    fields = data.draw(mutations(original))
    folder = tmp_path_factory.mktemp("mutant")
    (folder / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields))
    try:
        model = load_model(folder, device="cpu", dtype=torch.float32).model
    except ModelFileError:
        event("refused")
        return
    event("loaded")
    # what is called neutral must make no difference, so the oracle keeps its own values there
    fields = {k: v for k, v in fields.items() if k not in NEUTRAL_FIELDS and k != "model_type"}
    fields |= {k: v for k, v in original.items() if k in NEUTRAL_FIELDS}
    oracle = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**fields)).eval()
    oracle.load_state_dict(load_file(checkpoint / "model.safetensors"), strict=True)
    ids = token_ids(11)
    assert_close(
        "logits", PlainContext().logits(model, ids), oracle_logits(oracle, ids), rel_rms=1e-5
    )


@settings(max_examples=200, deadline=None)
@given(content=st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode)))
def test_any_bytes_as_config_are_refused_by_type(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelFileError):
        load_config(folder)
