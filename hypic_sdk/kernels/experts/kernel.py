"""Routed experts by torch's grouped matrix product: two launches for all experts.

Nothing waits for the device: which rows an expert has is known there alone.
"""

from __future__ import annotations

import torch

from hypic_sdk.kernels.activation import silu

# the library picks its tile by the mean number of rows of a group, and from more than this on
# another one; calls that never have more are all made of the same tiles
_ROWS_PER_GROUP = 128
# strides must be a multiple of 16 bytes
_ALIGNED_ELEMENTS = 8


def suits(x_LD: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> bool:
    """Whether the grouped product takes these dtypes and sizes on a GPU."""
    sizes = (gate_up.shape[2], down.shape[2])
    return all(tensor.dtype == torch.bfloat16 for tensor in (x_LD, gate_up, down)) and all(
        size % _ALIGNED_ELEMENTS == 0 for size in sizes
    )


def experts(
    x_LD: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    row_independent: bool,
) -> torch.Tensor:
    """[L, D], as `reference.experts`."""
    (num_rows, top_k), out_LD = indices.shape, torch.zeros_like(x_LD, dtype=weights.dtype)
    if num_rows == 0:
        return out_LD.to(x_LD.dtype)
    # a row adds up its experts in rising order, as in the definition
    chosen, places = indices.sort(dim=1)
    shares = weights.gather(1, places)
    order = chosen.flatten().argsort(stable=True)
    ends = torch.searchsorted(
        chosen.flatten()[order],
        torch.arange(gate_up.shape[0], device=x_LD.device),
        right=True,
    ).to(torch.int32)
    gate, up = grouped(x_LD[order // top_k], gate_up, ends, row_independent).chunk(2, dim=-1)
    sorted_TD = grouped(silu(gate) * up, down, ends, row_independent)
    products = torch.empty_like(sorted_TD)
    products[order] = sorted_TD
    products = products.unflatten(0, (num_rows, top_k))
    for k in range(top_k):
        out_LD += products[:, k].to(out_LD.dtype) * shares[:, k, None]
    return out_LD.to(x_LD.dtype)


def grouped(
    rows_TD: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor, row_independent: bool
) -> torch.Tensor:
    """Rows of group g times `weights[g]`^T; group g ends before row `ends[g]`.

    Args:
        weights: [groups, N, D]; ends: [groups] int32, rising, the last one T.
    """
    transposed, num_rows = weights.transpose(1, 2), rows_TD.shape[0]
    step = _ROWS_PER_GROUP * weights.shape[0] if row_independent else num_rows
    parts = [
        torch.nn.functional.grouped_mm(
            part, transposed, offs=(ends - i * step).clamp(0, part.shape[0])
        )
        for i, part in enumerate(rows_TD.split(step))
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
