"""Write a trained reader as a folder that transformers loads, or a sibling for the engine."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from hypic_sdk.demo.reader_model import Reader, ReaderConfig

MAX_SHARD_BYTES = 15 * 2**20
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def write_config(config: ReaderConfig, tokenizer: Path, out: Path) -> None:
    """Write config.json; the ids of end and padding come from the generation config."""
    generation = json.loads((tokenizer / "generation_config.json").read_text())
    content = config.to_json(generation["eos_token_id"][0], generation["pad_token_id"])
    (out / "config.json").write_text(json.dumps(content, indent=2) + "\n")


def tokenizer_digest(folder: Path) -> str:
    """What the index says of the tokenizer, so that another one beside the weights is refused.

    SHA-256 (hexadecimal) of its content in one layout, as `PromptTokenizer.from_folder` checks it.
    """
    file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(file, sort_keys=True).encode()).hexdigest()


def save_reader(reader: Reader, tokenizer: Path, out: Path) -> None:
    """Write bf16 shards, their index (which names the tokenizer), config and tokenizer."""
    out.mkdir(parents=True, exist_ok=True)
    stored = (
        {name: weight.detach().to("cpu", torch.bfloat16).contiguous()}
        for name, weight in reader.state_dict().items()
    )
    write_shards(stored, {"tokenizer_sha256": tokenizer_digest(tokenizer)}, out)
    write_config(reader.config, tokenizer, out)
    copy_tokenizer(tokenizer, out)


def write_shards(
    groups: Iterable[Mapping[str, torch.Tensor]], metadata: Mapping[str, Any], out: Path
) -> None:
    """Write tensors by name, and the index with `metadata`; a group stands in one shard."""
    shards: list[dict[str, torch.Tensor]] = [{}]
    room = MAX_SHARD_BYTES
    for group in groups:
        num_bytes = _num_bytes(group)
        if num_bytes > room:
            shards.append({})
            room = MAX_SHARD_BYTES
        shards[-1].update(group)
        room -= num_bytes
    places: dict[str, str] = {}
    for index, shard in enumerate(shards, start=1):
        file = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, out / file, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, file)
    whole = {"total_size": sum(map(_num_bytes, shards)), **metadata}
    index_text = json.dumps({"metadata": whole, "weight_map": places}, indent=1)
    (out / "model.safetensors.index.json").write_text(index_text + "\n")


def _num_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors.values())


def copy_tokenizer(tokenizer: Path, out: Path) -> None:
    """Put the files of a tokenizer's folder beside the weights, if they are not there."""
    if tokenizer.resolve() != out.resolve():
        for file in TOKENIZER_FILES:
            shutil.copyfile(tokenizer / file, out / file)
