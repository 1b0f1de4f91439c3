"""Rotary position of queries and keys that stay where they are: one launch on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.rotate_rows import reference


def rotate_rows(
    x_LGE: torch.Tensor, cos_LF: torch.Tensor, sin_LF: torch.Tensor, *, interleaved: bool
) -> torch.Tensor:
    """Turn the first 2 F numbers of each head by its row's angles; the rest passes.

    Args:
        x_LGE: any float dtype; may be a slice of a projection.
        cos_LF, sin_LF: of `rotary_angles`, F at most half of E.
        interleaved: pairs are (2i, 2i + 1), not halves.
    Returns:
        [L, G, E], new, in x's dtype; products are taken in the wider of the dtypes.
    Error:
        a row's bits depend on that row alone.
    """
    if x_LGE.ndim != 3 or cos_LF.shape != sin_LF.shape or cos_LF.shape[:1] != x_LGE.shape[:1]:
        raise ValueError(f"angles {tuple(cos_LF.shape)} do not fit rows {tuple(x_LGE.shape)}")
    if 2 * cos_LF.shape[1] > x_LGE.shape[2]:
        raise ValueError(f"cannot rotate {2 * cos_LF.shape[1]} of {x_LGE.shape[2]} dimensions")
    run = backend.select(
        "rotate_rows", reference.rotate_rows, _rotate_rows_kernel, device=x_LGE.device
    )
    return run(x_LGE, cos_LF, sin_LF, interleaved=interleaved)


def _rotate_rows_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.rotate_rows import kernel

    return kernel.rotate_rows
