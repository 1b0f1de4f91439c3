"""Rotation in plain torch."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.rotation import rotate


def rotate_rows(
    x_LGE: torch.Tensor, cos_LF: torch.Tensor, sin_LF: torch.Tensor, *, interleaved: bool
) -> torch.Tensor:
    """As `op.rotate_rows`."""
    return rotate(x_LGE, cos_LF, sin_LF, interleaved)
