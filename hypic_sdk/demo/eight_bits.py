"""Keep a trained reader in half of its bytes: matrices as e4m3, with a scale for each block.

    python -m hypic_sdk.demo.eight_bits FOLDER OUT

The layout is that of published FP8 checkpoints; `Linear` weights and the embedding are stored so,
everything else as it was.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from hypic_sdk.demo.export import copy_tokenizer, write_shards

BLOCK = (8, 64)  # rows and columns that share a scale
SCALE = "_scale_inv"


def to_eight_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in e4m3, and fp32 scales [rows / 8, columns / 64] by which it is multiplied."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % BLOCK[1], 0, -rows % BLOCK[0]))
    blocks = padded.unflatten(1, (-1, BLOCK[1])).unflatten(0, (-1, BLOCK[0]))
    largest = torch.finfo(torch.float8_e4m3fn).max
    scale = (blocks.abs().amax((1, 3)) / largest).clamp_min(torch.finfo(torch.float32).tiny)
    small = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    whole = small.flatten(2, 3).flatten(0, 1)
    return whole[:rows, :columns].contiguous(), scale


def from_eight_bits(
    state: dict[str, torch.Tensor], blocks: Sequence[int]
) -> dict[str, torch.Tensor]:
    """All weights in fp32, by their names; scales are multiplied in and gone.

    Args:
        blocks: rows and columns that share a scale.
    """
    found = {name: weight.float() for name, weight in state.items() if not name.endswith(SCALE)}
    for name, scale in state.items():
        if name.endswith(SCALE):
            weight = found[name.removesuffix(SCALE)]
            for dim, size in enumerate(blocks):
                scale = scale.repeat_interleave(size, dim).narrow(dim, 0, weight.shape[dim])
            weight *= scale
    return found


def keep_in_eight_bits(folder: Path, out: Path) -> None:
    """Write the reader of `folder` to `out`: shards, index, config, tokenizer."""
    out.mkdir(parents=True, exist_ok=True)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    digest = index["metadata"]["tokenizer_sha256"]
    write_shards(_kept(folder), {"tokenizer_sha256": digest}, out)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": list(BLOCK),
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    copy_tokenizer(folder, out)


def _kept(folder: Path) -> Iterator[dict[str, torch.Tensor]]:
    """Each tensor as it is stored; a matrix with its scales."""
    for path in sorted(folder.glob("*.safetensors")):
        for name, weight in load_file(path).items():
            if weight.dim() == 2 and min(weight.shape) >= BLOCK[1]:
                yield dict(zip((name, name + SCALE), to_eight_bits(weight), strict=True))
            else:
                yield {name: weight}


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args(argv)
    keep_in_eight_bits(given.folder, given.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
