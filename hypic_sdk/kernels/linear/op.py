"""Rows times a weight, where asked so that a row's bits do not depend on the other rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.linear import reference

ROW_MULTIPLE = 16
_KERNEL_DTYPES = (torch.bfloat16, torch.float16)


def way(num_inputs: int, num_outputs: int, dtype: torch.dtype) -> str:
    """Name of the row-independent product that a weight of this shape gets on a CPU.

    What is multiplied in another way has other bits.  Finding out takes a trial, once a shape.
    """
    return reference.way(num_inputs, num_outputs, dtype)


def linear(
    x_LD: torch.Tensor,
    weight_ND: torch.Tensor,
    bias_N: torch.Tensor | None = None,
    *,
    row_independent: bool,
) -> torch.Tensor:
    """x @ weight^T + bias.

    Args:
        x_LD: any float dtype; with `row_independent` L must be a multiple of 16 (the engine pads a
            batch once, at its end).
        weight_ND: N outputs, in x's dtype (N is no axis of the dimension key here).
        row_independent: row i of the result depends, bit by bit, on row i of x, the weight and the
            number of threads only: not on L, not on the place of the row (design 3.9).
    Returns:
        [L, N] in x's dtype.
    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    shape, weight_shape, dtype = x_LD.shape, weight_ND.shape, x_LD.dtype
    if not len(shape) == len(weight_shape) == 2 or shape[1] != weight_shape[1]:
        raise ValueError(f"weight {tuple(weight_shape)} does not fit rows {tuple(shape)}")
    if bias_N is not None and bias_N.shape != weight_shape[:1]:
        raise ValueError(f"bias {tuple(bias_N.shape)} for {weight_shape[0]} outputs")
    if dtype != weight_ND.dtype:
        raise ValueError(f"weight is {weight_ND.dtype}, rows are {dtype}")
    if not row_independent:
        return torch.nn.functional.linear(x_LD, weight_ND, bias_N)
    assert shape[0] % ROW_MULTIPLE == 0, f"{shape[0]} rows are not a multiple of {ROW_MULTIPLE}"
    run = backend.select(
        "linear",
        reference.row_independent_linear,
        _load_kernel,
        device=x_LD.device,
        unfit="" if dtype in _KERNEL_DTYPES else f"its kernel takes 16 bits, not {dtype}",
    )
    return run(x_LD, weight_ND, bias_N)


def _load_kernel() -> Callable[..., torch.Tensor]:
    from hypic_sdk.kernels.linear import kernel

    return kernel.row_independent_linear
