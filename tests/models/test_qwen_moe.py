"""Qwen3.5 MoE and Qwen3-Next against transformers: same files, same logits."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hypic_sdk.errors import ModelFileError
from hypic_sdk.kernels.experts.op import Routing
from hypic_sdk.kernels.mlp.op import swiglu
from hypic_sdk.layers.mlp import GatedMLP
from hypic_sdk.layers.moe import MixtureOfExperts
from hypic_sdk.models import qwen3_5
from hypic_sdk.models.loader import load_model
from tests.closeness import assert_close, relative_rms
from tests.models.oracle import (
    LEAST_MARGIN,
    MOE_SIZES,
    NEXT_SIZES,
    image_text_moe_model,
    moe_model,
    next_model,
    oracle_logits,
    router_margins,
    routers,
    save,
    token_ids,
)
from tests.plain_context import PlainContext

# fp32 on both sides; they differ in the order of sums only (design 3.7)
REL_RMS = 1e-5
NUM_TOKENS = 75  # crosses the 64-token tile of transformers' scan

MAKERS: dict[str, Callable[..., Any]] = {
    "moe": moe_model,
    "image-text moe": image_text_moe_model,
    "next": next_model,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("moe", {}),
    ("moe", {"tie_word_embeddings": True, "num_experts_per_tok": 1}),
    ("moe", {"attention_bias": True, "num_experts": 5, "num_experts_per_tok": 5}),
    ("image-text moe", {}),
    ("image-text moe", {"tie_word_embeddings": True}),
    ("next", {}),
    ("next", {"norm_topk_prob": False, "tie_word_embeddings": True, "attention_bias": True}),
    ("next", {"mlp_only_layers": [1], "layer_types": ["full_attention", "linear_attention"] * 2}),
    ("next", {"decoder_sparse_step": 2, "full_attention_interval": 2}),
    ("next", {"num_experts": 0}),
    ("next", {"linear_num_key_heads": 3, "linear_num_value_heads": 3}),
    ("next", {"linear_num_key_heads": 1, "linear_num_value_heads": 4, "linear_key_head_dim": 9}),
]
NAMES = [f"{name} {changes}" for name, changes in CASES]


def clear_tokens(oracle: torch.nn.Module, count: int, prefill: int) -> tuple[list[int], Any]:
    """Tokens at which no expert is chosen by a hair, and the oracle's logits of them."""
    for seed in range(40):
        ids = token_ids(count, seed)
        with router_margins(oracle) as margins:
            logits = oracle_logits(oracle, ids, prefill=prefill)
        if min(margins, default=1.0) > LEAST_MARGIN:
            return ids, logits
    raise AssertionError("a near tie in every prompt")


def ours(folder: Path, dtype: torch.dtype = torch.float32) -> qwen3_5.Model:
    model = load_model(folder, device="cpu", dtype=dtype).model
    assert isinstance(model, qwen3_5.Model)
    return model


@pytest.mark.parametrize(("name", "changes"), CASES, ids=NAMES)
def test_prefill_and_decode_equal_transformers(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    oracle = MAKERS[name](**changes)
    model = ours(save(oracle, tmp_path))
    ids, want = clear_tokens(oracle, NUM_TOKENS + 6, NUM_TOKENS)
    context = PlainContext()
    got = context.logits(model, ids[:NUM_TOKENS])
    assert_close("prefill", got, want[:NUM_TOKENS], rel_rms=REL_RMS)
    decoded = torch.cat([context.logits(model, [token]) for token in ids[NUM_TOKENS:]])
    assert_close("decode", decoded, want[NUM_TOKENS:], rel_rms=REL_RMS)


@pytest.mark.parametrize("name", MAKERS)
def test_decode_from_the_first_token_equals_transformers(name: str, tmp_path: Path) -> None:
    oracle = MAKERS[name]()
    model = ours(save(oracle, tmp_path))
    (ids, want), context = clear_tokens(oracle, 12, 1), PlainContext()
    got = torch.cat([context.logits(model, [token]) for token in ids])
    assert_close("decode", got, want, rel_rms=REL_RMS)


@pytest.mark.parametrize("name", MAKERS)
def test_sharded_bf16_weights(name: str, tmp_path: Path) -> None:
    """Weights of 16 bits run in fp32 as transformers runs them in fp32."""
    saved = MAKERS[name]().to(torch.bfloat16)
    save(saved, tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids, want = clear_tokens(saved.float(), 30, 30)
    assert_close("logits", PlainContext().logits(ours(tmp_path), ids), want, rel_rms=REL_RMS)


_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight$")


def fuse(folder: Path, layers: str = r"\d+") -> None:
    """Rewrite a checkpoint so that the experts of some layers lie in two tensors."""
    shard = folder / "model.safetensors"
    tensors, parts = load_file(shard), {}
    for name in list(tensors):
        if (found := _EXPERT.match(name)) and re.search(rf"layers\.(?:{layers})\.", name):
            parts[found[1], int(found[2]), found[3]] = tensors.pop(name)
    for prefix in {prefix for prefix, _, _ in parts}:
        count = 1 + max(e for p, e, _ in parts if p == prefix)
        gate, up, down = (
            torch.stack([parts[prefix, e, kind] for e in range(count)])
            for kind in ("gate", "up", "down")
        )
        tensors[f"{prefix}.gate_up_proj"] = torch.cat((gate, up), dim=1)
        tensors[f"{prefix}.down_proj"] = down
    save_file(tensors, shard)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("layers", [r"\d+", "[13]"], ids=["all", "some layers"])
def test_fused_experts_are_the_same_weights(name: str, layers: str, tmp_path: Path) -> None:
    one_by_one = ours(save(MAKERS[name](), tmp_path))
    fuse(tmp_path, layers)
    fused = ours(tmp_path)
    want = dict(one_by_one.named_parameters())
    assert all(torch.equal(value, want[key]) for key, value in fused.named_parameters())


@pytest.mark.parametrize(("name", "changes"), CASES, ids=NAMES)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_plan_fills_every_element_once(
    name: str, changes: dict[str, Any], one_by_one: bool
) -> None:
    sizes = NEXT_SIZES if name == "next" else MOE_SIZES
    model_type = "qwen3_next" if name == "next" else "qwen3_5_moe_text"
    config = qwen3_5.Config.from_hf({"model_type": model_type, **sizes, **changes})
    stored = [
        f"model.layers.{i}.mlp.experts.{e}.up_proj.weight" for i in range(4) for e in range(7)
    ]
    plan = qwen3_5.checkpoint_plan(config, stored if one_by_one else ())
    parameters = dict(qwen3_5.Model(config, torch.float32).named_parameters())
    written = {key: torch.zeros_like(value) for key, value in parameters.items()}
    for place in plan.places.values():
        target = written[place.parameter]
        target = target if place.expert is None else target[place.expert]
        for piece in place.pieces:
            target[piece.target : piece.target + piece.num_rows] += 1
        read = sorted({row for p in place.pieces for row in range(p.source, p.source + p.num_rows)})
        assert read == list(range(place.shape[0]))
    assert all((count == 1).all() for count in written.values())


def test_which_layers_are_sparse() -> None:
    def kinds(**changes: Any) -> str:
        config = qwen3_5.Config.from_hf({"model_type": "qwen3_next", **NEXT_SIZES, **changes})
        layers = qwen3_5.Model(config, torch.float32).layers
        assert all(isinstance(layer.mlp, MixtureOfExperts | GatedMLP) for layer in layers)
        return "".join("M" if isinstance(x.mlp, MixtureOfExperts) else "D" for x in layers)

    assert kinds() == "MMMM"
    assert kinds(mlp_only_layers=[0, 3]) == "DMMD"
    assert kinds(decoder_sparse_step=2) == "DMDM"
    assert kinds(decoder_sparse_step=2, mlp_only_layers=[1]) == "DDDM"
    assert kinds(num_experts=0) == "DDDD"
    assert kinds(mlp_only_layers=[0, 1, 2, 3]) == "DDDD"


def test_vision_and_mtp_are_skipped_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(image_text_moe_model(), tmp_path)
    shard = tmp_path / "model.safetensors"
    tensors = load_file(shard)
    num_vision = sum(name.startswith("model.visual.") for name in tensors)
    extra = {
        f"mtp.layers.0.mlp.experts.{e}.up_proj.weight": torch.full((3, 3), torch.nan)
        for e in range(9)
    }
    save_file({**tensors, **extra}, shard)
    with caplog.at_level(logging.INFO, logger="hypic_sdk"):
        ours(tmp_path)
    lines = [r.getMessage() for r in caplog.records if "skipped" in r.getMessage()]
    assert len(lines) == 1
    assert f"skipped {num_vision + 9} tensors" in lines[0]


@pytest.mark.parametrize("name", ["moe", "next"])
def test_a_missing_expert_and_one_too_many_are_named(name: str, tmp_path: Path) -> None:
    save(MAKERS[name](), tmp_path)
    shard = tmp_path / "model.safetensors"
    tensors = load_file(shard)
    expert = "model.layers.2.mlp.experts"
    tensors[f"{expert}.7.up_proj.weight"] = tensors.pop(f"{expert}.3.up_proj.weight")
    tensors[f"{expert}.4.down_proj.weight"] = tensors[f"{expert}.4.down_proj.weight"].mT.clone()
    tensors[f"{expert}.5.gate_proj.weight"][0, 0] = torch.inf
    save_file({key: value.contiguous() for key, value in tensors.items()}, shard)
    with pytest.raises(ModelFileError) as caught:
        load_model(tmp_path, device="cpu")
    details = caught.value.details
    assert details["missing"] == [f"{expert}.3.up_proj.weight"]
    assert details["surplus"] == [f"{expert}.7.up_proj.weight"]
    assert details["misshaped"] == [f"{expert}.4.down_proj.weight [20, 36], not [36, 20]"]


def test_an_expert_that_is_not_finite_is_named(tmp_path: Path) -> None:
    save(moe_model(), tmp_path)
    fuse(tmp_path, "0")
    shard = tmp_path / "model.safetensors"
    tensors = load_file(shard)
    names = ["model.layers.0.mlp.experts.down_proj", "model.layers.1.mlp.experts.6.up_proj.weight"]
    for name in names:
        tensors[name].flatten()[-1] = torch.nan
    save_file(tensors, shard)
    with pytest.raises(ModelFileError) as caught:
        load_model(tmp_path, device="cpu")
    assert sorted(caught.value.details["not_finite"]) == names


def test_a_packed_weight_that_is_not_finite_or_misshaped_is_named(tmp_path: Path) -> None:
    save(next_model(), tmp_path)
    shard = tmp_path / "model.safetensors"
    tensors = load_file(shard)
    name = "model.layers.1.linear_attn.in_proj_ba.weight"
    tensors[name][-1, -1] = torch.nan
    save_file(tensors, shard)
    with pytest.raises(ModelFileError) as caught:
        load_model(tmp_path, device="cpu")
    assert caught.value.details["not_finite"] == [name]
    save_file({**tensors, name: tensors[name][1:]}, shard)
    with pytest.raises(ModelFileError) as caught:
        load_model(tmp_path, device="cpu")
    assert caught.value.details["misshaped"] == [f"{name} [11, 36], not [12, 36]"]


def chosen_experts(oracle: torch.nn.Module, ids: list[int]) -> list[torch.Tensor]:
    """Indices [L, top_k] of every layer, as the oracle chooses them."""
    found: list[torch.Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, out: found.append(out[2]))
        for module in routers(oracle)
    ]
    oracle_logits(oracle, ids)
    for hook in hooks:
        hook.remove()
    return found


def test_bf16_is_at_most_twice_as_far_from_fp32_as_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the experts of fp32 replayed on both sides: each computes the shares, none chooses."""
    oracle = moe_model()
    folder = save(oracle.to(torch.bfloat16), tmp_path)
    model, replayed = ours(folder, torch.bfloat16), []

    def replay(router_logits: torch.Tensor) -> Routing:
        indices = replayed.pop(0)
        shares = router_logits.float().softmax(-1).gather(1, indices)
        return Routing(indices, shares / shares.sum(-1, keepdim=True))

    def replay_there(_module: object, _inputs: object, out: Any) -> Any:
        routing = replay(out[0])
        return out[0], routing.weights.to(out[1].dtype), routing.indices

    def replay_here(logits: torch.Tensor, gate_up: torch.Tensor, **_: object) -> Any:
        return replay(logits), swiglu(gate_up)

    monkeypatch.setattr("hypic_sdk.layers.moe.route_with_swiglu", replay_here)
    errors, allowed = [], []
    for seed in range(5):
        ids = token_ids(20, seed)
        truth = oracle_logits(oracle.float(), ids)
        experts = chosen_experts(oracle, ids)
        hooks = [module.register_forward_hook(replay_there) for module in routers(oracle)]
        replayed[:] = experts
        there = oracle_logits(oracle.to(torch.bfloat16), ids)
        for hook in hooks:
            hook.remove()
        replayed[:] = experts
        errors.append(relative_rms(PlainContext().logits(model, ids), truth))
        allowed.append(relative_rms(there, truth))
    assert sorted(errors)[2] <= 2 * sorted(allowed)[2], (errors, allowed)
