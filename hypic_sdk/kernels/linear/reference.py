"""Row-independent products in plain torch.

What was measured with MKL, 1 to 8 threads, over random shapes (tests/kernels/test_linear.py):
- row counts that are not a multiple of 16 choose other instructions for the last rows;
- a long reduction is cut differently for other row counts, unless it is cut here, in blocks of 256
  columns (fp32) or 128 (fp64);
- a single output column becomes a matrix-vector product, which is split by rows.
Products in bf16 and fp16 depend on the row count whatever the cut, so they are taken in fp32.
"""

from __future__ import annotations

import torch

_BLOCK_COLUMNS = {torch.float32: 256, torch.float64: 128}
_LEAST_OUTPUTS = 16
# a GPU library picks its tile by the row count: there every product has this many rows
_CUDA_ROWS = 256


def row_independent_linear(
    x_LD: torch.Tensor, weight_ND: torch.Tensor, bias_N: torch.Tensor | None
) -> torch.Tensor:
    """x @ weight^T + bias, a row's bits depending on that row alone; L a multiple of 16."""
    if x_LD.is_cuda:
        return _fixed_shape_product(x_LD, weight_ND, bias_N)
    num_outputs = weight_ND.shape[0]
    if num_outputs < _LEAST_OUTPUTS:
        weight_ND = torch.nn.functional.pad(weight_ND, (0, 0, 0, _LEAST_OUTPUTS - num_outputs))
    out_LN = _blocked_product(x_LD, weight_ND)[:, :num_outputs]
    if bias_N is not None:
        out_LN = out_LN + bias_N
    return out_LN.to(x_LD.dtype).contiguous()


def _blocked_product(x_LD: torch.Tensor, weight_ND: torch.Tensor) -> torch.Tensor:
    """x @ weight^T with the reduction cut in blocks of fixed size; in fp32, or fp64 for fp64."""
    compute_dtype = torch.float64 if x_LD.dtype == torch.float64 else torch.float32
    blocks = zip(
        x_LD.split(_BLOCK_COLUMNS[compute_dtype], dim=1),
        weight_ND.split(_BLOCK_COLUMNS[compute_dtype], dim=1),
        strict=True,
    )
    out_LN: torch.Tensor | None = None
    for x_block, weight_block in blocks:
        x_block, weight_block = x_block.to(compute_dtype), weight_block.to(compute_dtype).t()
        if out_LN is None:
            out_LN = torch.mm(x_block, weight_block)
        else:
            out_LN.addmm_(x_block, weight_block)
    assert out_LN is not None, "a product over no columns"
    return out_LN


def _fixed_shape_product(
    x_LD: torch.Tensor, weight_ND: torch.Tensor, bias_N: torch.Tensor | None
) -> torch.Tensor:
    """x @ weight^T + bias by products of one shape only, the last one filled up with zero rows."""
    num_rows = x_LD.shape[0]
    padded_LD = torch.nn.functional.pad(x_LD, (0, 0, 0, -num_rows % _CUDA_ROWS))
    out_LN = x_LD.new_empty(padded_LD.shape[0], weight_ND.shape[0])
    for x_block, out_block in zip(
        padded_LD.split(_CUDA_ROWS), out_LN.split(_CUDA_ROWS), strict=True
    ):
        torch.mm(x_block, weight_ND.t(), out=out_block)
    out_LN = out_LN[:num_rows]
    return out_LN if bias_N is None else out_LN + bias_N
