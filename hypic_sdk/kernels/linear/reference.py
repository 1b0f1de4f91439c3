"""Row-independent products in plain torch.

A matrix library picks instructions, and the order in which a sum is taken, by the shape of the
product.  Two ways around that, both measured over random shapes with 1 to 8 threads and with the
library held to AVX-512, AVX2 and SSE4.2 instructions:

- *cut*: one product, its reduction cut in blocks short enough for the library's own.  With
  AVX-512 a row's bits then agree for all row counts that are a multiple of 16, at the speed of the
  plain product; with AVX2 they do not.
- *tiled*: many products of one shape, 16 rows each (48 in fp64), rows last.  No other shape ever
  occurs, and a row's place in such a tile made no difference anywhere.  About half the speed.

Which one a weight gets is found out by trying, once per shape and number of threads.  Products of
so few outputs that they would become a matrix and a vector are filled up.  Low precision is
computed in fp32, since a bf16 product depended on the row count whatever the cut.
"""

from __future__ import annotations

import functools
import logging

import torch

from hypic_sdk.kernels.alignment import aligned

logger = logging.getLogger(__name__)

_CUT_COLUMNS = {torch.float32: 384, torch.float64: 128}
_TILE_ROWS = {torch.float32: 16, torch.float64: 48}
_LEAST_OUTPUTS = 16
# weights (inputs, outputs) with which a library that does not suit was caught each time
_TELLTALES = ((384, 192), (1000, 131), (96, 40))
# a GPU library picks its tile by the row count: there every product has this many rows
_CUDA_ROWS = 256


def row_independent_linear(
    x_LD: torch.Tensor, weight_ND: torch.Tensor, bias_N: torch.Tensor | None
) -> torch.Tensor:
    """x @ weight^T + bias, a row's bits depending on that row alone; L a multiple of 16."""
    if x_LD.is_cuda:
        return _fixed_shape_linear(x_LD, weight_ND, bias_N)
    dtype = torch.float64 if x_LD.dtype == torch.float64 else torch.float32
    x, weight = aligned(x_LD.to(dtype)), weight_ND.to(dtype)
    num_outputs = weight.shape[0]
    if num_outputs < _LEAST_OUTPUTS:
        weight = torch.nn.functional.pad(weight, (0, 0, 0, _LEAST_OUTPUTS - num_outputs))
    is_cut = way(weight.shape[1], weight.shape[0], dtype) == "cut"
    out_LN = (cut_product if is_cut else tiled_product)(x, weight)
    if num_outputs < _LEAST_OUTPUTS:
        out_LN = out_LN[:, :num_outputs].contiguous()
    if bias_N is not None:
        out_LN += bias_N
    return out_LN.to(x_LD.dtype)


def way(num_inputs: int, num_outputs: int, dtype: torch.dtype) -> str:
    """How a weight of this shape is multiplied on this CPU: "cut" or "tiled".

    The two differ in their last bits.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    num_outputs = max(num_outputs, _LEAST_OUTPUTS)
    suits = _cut_product_suits(num_inputs, num_outputs, wide, torch.get_num_threads())
    return "cut" if suits else "tiled"


def cut_product(x_LD: torch.Tensor, weight_ND: torch.Tensor) -> torch.Tensor:
    """x @ weight^T, the reduction in blocks of fixed length."""
    columns, width = _CUT_COLUMNS[x_LD.dtype], x_LD.shape[1]
    if width <= columns:
        return torch.mm(x_LD, weight_ND.t())
    out_LN = torch.mm(x_LD[:, :columns], weight_ND[:, :columns].t())
    for start in range(columns, width, columns):
        block = slice(start, start + columns)
        out_LN.addmm_(x_LD[:, block], weight_ND[:, block].t())
    return out_LN


def tiled_product(x_LD: torch.Tensor, weight_ND: torch.Tensor) -> torch.Tensor:
    """x @ weight^T by products of one shape only, the last one filled up with zero rows."""
    num_rows, rows = x_LD.shape[0], _TILE_ROWS[x_LD.dtype]
    x_LD = torch.nn.functional.pad(x_LD, (0, 0, 0, -num_rows % rows))
    out_LN = x_LD.new_empty(x_LD.shape[0], weight_ND.shape[0])
    for tile_RD, out_RN in zip(x_LD.split(rows), out_LN.split(rows), strict=True):
        # rows last: a tile's rows are then lanes of one vector, and all alike
        out_RN.copy_(torch.mm(weight_ND, tile_RD.t()).t())
    return out_LN[:num_rows]


@functools.cache
def _cut_product_suits(
    num_inputs: int, num_outputs: int, dtype: torch.dtype, num_threads: int
) -> bool:
    """Whether the cut product may be used for a weight of this shape on this machine."""
    suits = all(
        _rows_agree(*shape, dtype, num_threads)
        for shape in (*_TELLTALES, (num_inputs, num_outputs))
    )
    logger.debug(
        "row-independent product inputs=%d outputs=%d dtype=%s threads=%d way=%s",
        num_inputs,
        num_outputs,
        dtype,
        num_threads,
        "cut" if suits else "tiled",
    )
    return suits


@functools.cache
def _rows_agree(num_inputs: int, num_outputs: int, dtype: torch.dtype, num_threads: int) -> bool:
    """Whether, in a trial, rows come out of the cut product alike in batches of many sizes."""
    rng = torch.Generator().manual_seed(0)
    # a large product is shared among threads in other ways; a huge one would take too long to try
    num_rows = 1440 if num_inputs * num_outputs <= 2**18 else 288
    x = torch.randn(num_rows, num_inputs, generator=rng, dtype=dtype)
    weight = torch.randn(num_outputs, num_inputs, generator=rng, dtype=dtype)
    whole = cut_product(x, weight)
    return all(
        torch.equal(cut_product(aligned(x[a : a + rows]), weight), whole[a : a + rows])
        for rows, a in ((16, 0), (16, 21), (32, 5), (48, 100), (80, 64), (144, 7), (272, 16))
    )


def _fixed_shape_linear(
    x_LD: torch.Tensor, weight_ND: torch.Tensor, bias_N: torch.Tensor | None
) -> torch.Tensor:
    """x @ weight^T + bias on a GPU by products of one shape only."""
    num_rows = x_LD.shape[0]
    padded_LD = torch.nn.functional.pad(x_LD, (0, 0, 0, -num_rows % _CUDA_ROWS))
    out_LN = x_LD.new_empty(padded_LD.shape[0], weight_ND.shape[0])
    for tile_RD, out_RN in zip(padded_LD.split(_CUDA_ROWS), out_LN.split(_CUDA_ROWS), strict=True):
        torch.mm(tile_RD, weight_ND.t(), out=out_RN)
    out_LN = out_LN[:num_rows]
    return out_LN if bias_N is None else out_LN + bias_N
