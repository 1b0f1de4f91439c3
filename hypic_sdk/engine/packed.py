"""Vectors of numbers that go to the device as one, and ids that are there already."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.upload import upload

NOT_FED = -1


def padded(numbers: torch.Tensor, length: int, filler: int) -> torch.Tensor:
    """The same vector, of this length."""
    return torch.nn.functional.pad(numbers, (0, length - len(numbers)), value=filler)


def upload_packed(pieces: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """Each of these int64 vectors on the device, behind one copy.

    Every piece begins at a multiple of 16 bytes: Triton compiles a kernel anew for addresses that
    do not.
    """
    lengths = [len(piece) + len(piece) % 2 for piece in pieces.values()]
    even = [padded(x, n, 0) for x, n in zip(pieces.values(), lengths, strict=True)]
    there = upload(torch.cat(even), device).split(lengths)
    named = zip(pieces.items(), there, strict=True)
    return {name: whole[: len(piece)] for (name, piece), whole in named}


def feed(ids_L: torch.Tensor, fed_L: torch.Tensor, drawn_R: torch.Tensor) -> torch.Tensor:
    """Ids of a forward, of which some are what the forward before drew; nobody waits for those.

    Args:
        ids_L: [L] int64, of the other rows.
        fed_L: [L] int64, places in `drawn_R`, or NOT_FED.
        drawn_R: [R] int64, at least one.
    """
    return torch.where(fed_L == NOT_FED, ids_L, drawn_R[fed_L.clamp_min(0)])
