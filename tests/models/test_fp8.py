"""Checkpoints of block-scaled 8-bit weights: what runs is each weight times its block's scale."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models.loader import load_model
from hypic_sdk.models.qwen3_5 import Model
from tests.models.oracle import image_text_moe_model, moe_model, next_model, save, text_model

BLOCKS = (16, 10)  # neither divides the sizes
MAKERS: dict[str, Callable[..., Any]] = {
    "dense": text_model,
    "moe": moe_model,
    "image-text moe": image_text_moe_model,
    "next": next_model,
}
QUANTISED = re.compile(
    r"\.(?:q|k|v|o|gate|up|down|in_proj_qkv|in_proj_qkvz|out)(?:_proj)?\.weight$"
)
FIELDS = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "modules_to_not_convert": ["lm_head"],
    "quant_method": "fp8",
    "weight_block_size": list(BLOCKS),
}


def is_quantised(name: str) -> bool:
    return "visual" not in name and "mlp.gate.weight" not in name and bool(QUANTISED.search(name))


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """8-bit weight, scale of each block, and their product, block by block."""
    height, width = weight.shape
    stored = torch.zeros(height, width, dtype=torch.float8_e4m3fn)
    scales = torch.zeros(-(-height // BLOCKS[0]), -(-width // BLOCKS[1]))
    product = torch.zeros(height, width)
    for i, top in enumerate(range(0, height, BLOCKS[0])):
        for j, left in enumerate(range(0, width, BLOCKS[1])):
            block = (slice(top, top + BLOCKS[0]), slice(left, left + BLOCKS[1]))
            scales[i, j] = weight[block].abs().max() / 448
            stored[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
            product[block] = stored[block].float() * scales[i, j]
    return stored, scales, product


def quantise(folder: Path, twin: Path) -> list[str]:
    """Turn a checkpoint into one of 8-bit weights; `twin` gets the products in fp32."""
    tensors, plain, names = load_file(folder / "model.safetensors"), {}, []
    for name, weight in list(tensors.items()):
        plain[name] = weight
        if is_quantised(name):
            names.append(name)
            tensors[name], tensors[f"{name}_scale_inv"], plain[name] = quantised(weight)
    fields = json.loads((folder / "config.json").read_text())
    (twin / "config.json").write_text(json.dumps(fields))
    (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": FIELDS}))
    save_file(plain, twin / "model.safetensors")
    save_file(tensors, folder / "model.safetensors")
    return names


def load(folder: Path) -> dict[str, torch.Tensor]:
    model = load_model(folder, device="cpu", dtype=torch.float32).model
    assert isinstance(model, Model)
    return dict(model.named_parameters())


@pytest.mark.parametrize("name", MAKERS)
def test_weights_are_the_products(name: str, tmp_path: Path) -> None:
    """Equal bits to the same weights stored in fp32, whose logits other tests compare."""
    twin = tmp_path / "twin"
    twin.mkdir()
    names = quantise(save(MAKERS[name](), tmp_path / "fp8"), twin)
    assert len(names) > 20
    got, want = load(tmp_path / "fp8"), load(twin)
    assert got.keys() == want.keys()
    assert all(torch.equal(got[key], want[key]) for key in want)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "twin").mkdir()
    quantise(save(text_model(num_hidden_layers=2), tmp_path / "fp8"), tmp_path / "twin")
    return tmp_path / "fp8"


WEIGHT = "model.layers.1.mlp.up_proj.weight"
SCALE = f"{WEIGHT}_scale_inv"


@pytest.mark.parametrize(
    ("change", "details"),
    [
        (lambda t: t.pop(SCALE), {"missing": [SCALE]}),
        (
            lambda t: t.update({SCALE: t[SCALE][1:]}),
            {"misshaped": [f"{SCALE} [2, 4], not [3, 4]"]},
        ),
        (lambda t: t.update({WEIGHT: t[WEIGHT].float()}), {"surplus": [SCALE]}),
        (lambda t: t.update({"x_scale_inv": t[SCALE]}), {"surplus": ["x_scale_inv"]}),
        (
            lambda t: t.update({SCALE: t[SCALE].int()}),
            {"unreadable": [f"{SCALE} (dtype I32)"]},
        ),
        (lambda t: t[SCALE][-1].fill_(torch.nan), {"not_finite": [WEIGHT]}),
        (
            lambda t: t.update(
                {"model.norm.weight": t["model.norm.weight"].to(torch.float8_e4m3fn)}
            ),
            {"unreadable": ["model.norm.weight (dtype F8_E4M3)"]},
        ),
    ],
    ids=["no scale", "short scale", "scale of fp32", "of nothing", "integer", "nan", "vector"],
)
def test_what_does_not_fit_is_named(
    change: Callable[[dict[str, torch.Tensor]], object], details: dict[str, Any], folder: Path
) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ModelFileError) as caught:
        load(folder)
    assert caught.value.details == details


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"quant_method": "gptq"}, "quant_method"),
        ({"activation_scheme": "static"}, "activation_scheme"),
        ({"weight_block_size": [128]}, "weight_block_size"),
        ({"weight_block_size": [0, 128]}, "weight_block_size"),
        ({"weight_block_size": None}, "weight_block_size"),
        ({"fmt": "e5m2"}, "fmt"),
        ({"scale_fmt": "ue8m0"}, "scale_fmt"),
        ({"bits": 4}, "bits"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
    ],
    ids=str,
)
def test_other_ways_to_store_weights_are_refused_by_name(
    changes: dict[str, Any], named: str, folder: Path
) -> None:
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = {**FIELDS, **changes}
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelFileError) as caught:
        load(folder)
    assert caught.value.details["fields"] == [f"quantization_config.{named}"]


@pytest.mark.parametrize(
    "changes",
    [{"ignored_layers": []}, {"ignored_layers": ["lm_head"]}, {"kv_cache_scheme": None}],
    ids=str,
)
def test_other_names_for_what_is_there_change_nothing(
    changes: dict[str, Any], folder: Path
) -> None:
    """Which modules are stored in 8 bits is read from the files, under whatever name it is told."""
    want = load(folder)
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = {**FIELDS, **changes}
    (folder / "config.json").write_text(json.dumps(fields))
    got = load(folder)
    assert all(torch.equal(got[name], want[name]) for name in want)
