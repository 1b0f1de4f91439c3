"""config.json of Qwen3.5 MoE and Qwen3-Next: transformers' defaults, and nothing unknown passes."""

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
from hypic_sdk.models.config_fields import NEUTRAL_FIELDS
from hypic_sdk.models.loader import load_model
from hypic_sdk.models.qwen3_5 import Config
from tests.closeness import assert_close
from tests.models.oracle import (
    MOE_SIZES,
    NEXT_SIZES,
    Qwen3_5MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    next_model,
    oracle_logits,
    save,
    token_ids,
)
from tests.models.test_qwen3_5_config import NASTY, RELEASED, of_ours, of_transformers
from tests.plain_context import PlainContext

SIZES = {"qwen3_5_moe_text": MOE_SIZES, "qwen3_next": NEXT_SIZES}
CLASSES: dict[str, Any] = {
    "qwen3_5_moe_text": Qwen3_5MoeTextConfig,
    "qwen3_next": Qwen3NextConfig,
}

# as published for the 80B, with its own field names
RELEASED_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0.dev0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
# the published image-text layout with the sizes of the 35B-A3B
RELEASED_MOE: dict[str, Any] = {
    **RELEASED,
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "vision_config": {"depth": 27, "model_type": "qwen3_5_moe"},
    "text_config": {
        **{k: v for k, v in RELEASED["text_config"].items() if k != "intermediate_size"},
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    },
}


def agree(fields: dict[str, Any], text: Any) -> None:
    """Our reading of the fields, and transformers' own class."""
    config = Config.from_hf(fields)
    text.intermediate_size = getattr(text, "intermediate_size", 0)
    want = of_transformers(text) | {
        "moe.num_experts": text.num_experts,
        "moe.top_k": text.num_experts_per_tok,
        "moe.inner": text.moe_intermediate_size,
        "moe.shared_inner": text.shared_expert_intermediate_size,
        "moe.renormalise": getattr(text, "norm_topk_prob", True),
        "sparse_layers": frozenset(
            i
            for i in range(text.num_hidden_layers)
            if i not in (getattr(text, "mlp_only_layers", None) or ())
            and (i + 1) % getattr(text, "decoder_sparse_step", 1) == 0
        ),
        "packed": text.model_type == "qwen3_next",
    }
    assert of_ours(config, want) == want


def test_every_default_is_that_of_transformers() -> None:
    for model_type, make in CLASSES.items():
        agree({"model_type": model_type}, make())
    agree({"model_type": "qwen3_5_moe", "text_config": {}}, Qwen3_5MoeConfig().text_config)


@pytest.mark.parametrize("model_type", SIZES)
@pytest.mark.parametrize("name", NEXT_SIZES)
def test_a_missing_field_means_the_same_as_there(model_type: str, name: str) -> None:
    fields = dict(SIZES[model_type])
    # head counts must still divide each other where the default steps in
    fields |= {"linear_num_value_heads": 16, "num_attention_heads": 16} if "heads" in name else {}
    fields |= {"num_experts": 16} if name == "num_experts_per_tok" else {}
    fields.pop(name, None)
    agree({"model_type": model_type, **fields}, CLASSES[model_type](**fields))


@pytest.mark.parametrize(
    "changes",
    [
        {"mlp_only_layers": [0, 2]},
        {"mlp_only_layers": None, "decoder_sparse_step": 3},
        {"norm_topk_prob": False},
        {"full_attention_interval": 2},
        {"layer_types": ["full_attention"] + ["linear_attention"] * 3},
        {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
    ],
    ids=str,
)
def test_fields_of_next(changes: dict[str, Any]) -> None:
    fields = {**NEXT_SIZES, **changes}
    agree({"model_type": "qwen3_next", **fields}, Qwen3NextConfig(**copy.deepcopy(fields)))


def test_released_configs_are_read() -> None:
    agree(RELEASED_NEXT, Qwen3NextConfig(**copy.deepcopy(RELEASED_NEXT)))
    agree(RELEASED_MOE, Qwen3_5MoeConfig(**copy.deepcopy(RELEASED_MOE)).text_config)
    assert Config.from_hf(RELEASED_NEXT).eos_token_ids == (151645,)
    assert Config.from_hf(RELEASED_MOE).attention.rotary.rotary_dims == 64


@pytest.mark.parametrize("model_type", SIZES)
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts_per_tok": 8}, "num_experts_per_tok"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"num_experts": None}, "num_experts"),
        ({"num_experts": 2**40}, "num_experts"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ({"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"mlp_only_layers": 3}, "mlp_only_layers"),
        ({"mlp_only_layers": [-1]}, "mlp_only_layers"),
        ({"mlp_only_layers": [True]}, "mlp_only_layers"),
        ({"norm_topk_prob": 1}, "norm_topk_prob"),
        ({"routed_scaling_factor": 2.5}, "routed_scaling_factor"),
        ({"n_group": 4}, "n_group"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type"),
        ({"architectures": ["Qwen3_5ForCausalLM"]}, "architectures"),
    ],
    ids=str,
)
def test_what_changes_the_mathematics_is_refused_by_name(
    model_type: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json") as caught:
        Config.from_hf({"model_type": model_type, **SIZES[model_type], **changes})
    assert named in caught.value.details["fields"]


@pytest.mark.parametrize(
    "changes",
    [{"decoder_sparse_step": 2}, {"mlp_only_layers": [1]}, {"norm_topk_prob": False}],
    ids=str,
)
def test_qwen3_5_moe_has_experts_in_every_layer(changes: dict[str, Any]) -> None:
    """transformers' class ignores these fields there; a file that sets them means another model."""
    with pytest.raises(ModelFileError) as caught:
        Config.from_hf({"model_type": "qwen3_5_moe_text", **MOE_SIZES, **changes})
    assert caught.value.details["fields"] == list(changes)


def test_next_has_no_image_text_layout() -> None:
    with pytest.raises(ModelFileError) as caught:
        Config.from_hf({"model_type": "qwen3_next", "text_config": {**NEXT_SIZES}})
    assert "text_config" in caught.value.details["fields"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(next_model(num_hidden_layers=2), tmp_path_factory.mktemp("checkpoint"))


ADDED = ["full_attention_interval", "rope_theta", "surprise", "text_config"]


@st.composite
def mutations(draw: st.DrawFn, fields: dict[str, Any]) -> dict[str, Any]:
    """One or two fields changed, dropped or added."""
    fields = copy.deepcopy(fields)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from([*fields, *ADDED]))
        if draw(st.integers(0, 3)) == 0:
            fields.pop(name, None)
        else:
            fields[name] = draw(NASTY)
    return fields


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
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
    want_model = Qwen3NextForCausalLM(Qwen3NextConfig(**fields)).eval()
    want_model.load_state_dict(_fused(load_file(checkpoint / "model.safetensors")), strict=True)
    ids = token_ids(11)
    want = oracle_logits(want_model, ids)
    assert_close("logits", PlainContext().logits(model, ids), want, rel_rms=1e-5)


def _fused(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As transformers holds the experts in memory."""
    out = {name: value for name, value in tensors.items() if ".mlp.experts." not in name}
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.experts"
        parts = [
            [tensors[f"{name}.{e}.{kind}_proj.weight"] for e in range(7)]
            for kind in ("gate", "up", "down")
        ]
        gate, up, down = (torch.stack(part) for part in parts)
        out |= {f"{name}.gate_up_proj": torch.cat((gate, up), 1), f"{name}.down_proj": down}
    return out
