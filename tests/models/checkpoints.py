"""Tiny random checkpoints in every published layout, made with transformers.

`python -m tests.models.checkpoints FOLDER` writes them all, to look at or to try commands on.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tests.models.oracle import (
    image_text_model,
    image_text_moe_model,
    moe_model,
    next_model,
    save,
    text_model,
)
from tests.models.test_fp8 import quantise
from tests.models.test_qwen_moe import fuse
from tests.prompt import published, tiny

# both kinds of layer twice, so that a composed state passes through all that there is
MIXERS = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
SIZES: dict[str, Any] = {"layer_types": MIXERS, "max_position_embeddings": 2048}

Maker = Callable[..., Any]
Writer = Callable[..., Any]


def _plain(
    make: Maker, dtype: torch.dtype, *, shards: str = "1GB", fused: bool = False, **changes: Any
) -> Writer:
    """Saves a model in a precision; gives the same weights in fp32."""

    def write(folder: Path, **sizes: Any) -> Any:
        model = make(**{**SIZES, **changes, **sizes}).to(dtype)
        save(model, folder, max_shard_size="1GB" if fused else shards)
        if fused:
            fuse(folder)
        return _oracle(type(model), folder)

    return write


def _oracle(kind: Any, folder: Path) -> Any:
    """Read by transformers: what a model in 16 bits keeps wide (angles) was never rounded."""
    oracle = kind.from_pretrained(folder, dtype=torch.float32, experts_implementation="eager")
    return oracle.eval()


def _with_extras(make: Maker, dtype: torch.dtype, **changes: Any) -> Writer:
    """The same, with the weights of a multi-token-prediction head beside."""

    def write(folder: Path, **sizes: Any) -> Any:
        oracle = _plain(make, dtype, **changes)(folder, **sizes)
        shard = folder / "model.safetensors"
        tensors = load_file(shard)
        assert any(".visual." in name for name in tensors)
        tensors["mtp.fc.weight"] = torch.ones(3, 5)
        tensors["mtp.layers.0.mlp.experts.0.up_proj.weight"] = torch.ones(3, 5)
        save_file(tensors, shard)
        return oracle

    return write


def _in_8_bits(make: Maker, **changes: Any) -> Writer:
    """Block-scaled 8-bit weights; the oracle gets the products, in fp32."""

    def write(folder: Path, **sizes: Any) -> Any:
        twin = folder.with_name(f"{folder.name}-twin")
        twin.mkdir()
        model = make(**{**SIZES, **changes, **sizes})
        quantise(save(model, folder), twin)
        oracle = _oracle(type(model), twin)
        shutil.rmtree(twin)
        return oracle

    return write


F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
LAYOUTS: Mapping[str, Writer] = MappingProxyType(
    {
        "dense": _plain(text_model, F32),
        "dense, tied, bf16, sharded": _plain(
            text_model, BF16, shards="30KB", tie_word_embeddings=True
        ),
        "dense, fp16": _plain(text_model, F16),
        "dense, 8 bits": _in_8_bits(text_model),
        "image-text, vision and mtp": _with_extras(image_text_model, BF16),
        "image-text, tied": _with_extras(image_text_model, F32, tie_word_embeddings=True),
        "moe": _plain(moe_model, F32),
        "moe, fused experts, bf16": _plain(moe_model, BF16, fused=True),
        "moe, tied, fp16, sharded": _plain(moe_model, F16, shards="60KB", tie_word_embeddings=True),
        "moe, 8 bits": _in_8_bits(moe_model),
        "image-text moe, vision and mtp": _with_extras(image_text_moe_model, F32),
        "image-text moe, 8 bits": _in_8_bits(image_text_moe_model),
        "next": _plain(next_model, F32),
        "next, bf16, sharded": _plain(next_model, BF16, shards="60KB"),
        "next, fused experts, some layers dense": _plain(
            next_model, F32, fused=True, mlp_only_layers=[1]
        ),
        "next, 8 bits": _in_8_bits(next_model),
    }
)
"""Each writes one checkpoint and gives transformers' model of the same weights, in fp32.

Called with a folder, and sizes that are other than here.
"""

END_TOKEN = "<|im_end|>"


def write_whole(name: str, folder: Path) -> None:
    """A layout and what commands need besides: a tokenizer of its vocabulary, a template."""
    file = tiny.byte_level()
    tokenizer = Tokenizer.from_str(json.dumps(file))
    LAYOUTS[name](
        folder,
        vocab_size=tokenizer.get_vocab_size() + 3,  # published models have more rows than ids too
        eos_token_id=tokenizer.token_to_id(END_TOKEN),
    )
    kind = "qwen3-next-thinking" if name.startswith("next") else "qwen3.5"
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_TOKEN}))
    (folder / "chat_template.jinja").write_text(published.TEMPLATES[kind], encoding="utf-8")


def folder_name(name: str) -> str:
    """A layout's name without what a shell would want quoted."""
    return name.replace(",", "").replace(" ", "-")


def write_every(folder: Path) -> None:
    """All layouts, each whole and in a folder of its own."""
    for name in LAYOUTS:
        target = folder / folder_name(name)
        target.mkdir(parents=True)
        write_whole(name, target)


if __name__ == "__main__":
    write_every(Path(sys.argv[1]))
