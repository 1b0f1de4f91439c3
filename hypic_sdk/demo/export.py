"""Write a trained reader as a folder that transformers loads, or a sibling for the engine."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

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
    shards: list[dict[str, torch.Tensor]] = [{}]
    room = MAX_SHARD_BYTES
    for name, weight in reader.state_dict().items():
        stored = weight.detach().to("cpu", torch.bfloat16).contiguous()
        num_bytes = stored.numel() * stored.element_size()
        if num_bytes > room:
            shards.append({})
            room = MAX_SHARD_BYTES
        shards[-1][name] = stored
        room -= num_bytes
    places: dict[str, str] = {}
    for index, shard in enumerate(shards, start=1):
        file = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, out / file, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, file)
    total = sum(w.numel() * 2 for shard in shards for w in shard.values())
    metadata = {"total_size": total, "tokenizer_sha256": tokenizer_digest(tokenizer)}
    index_text = json.dumps({"metadata": metadata, "weight_map": places}, indent=1)
    (out / "model.safetensors.index.json").write_text(index_text + "\n")
    write_config(reader.config, tokenizer, out)
    if tokenizer.resolve() != out.resolve():
        for file in TOKENIZER_FILES:
            shutil.copyfile(tokenizer / file, out / file)
