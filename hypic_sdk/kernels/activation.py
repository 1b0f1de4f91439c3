"""Sigmoid, SiLU and softplus of which every element's bits depend on that element alone.

torch's own versions vectorise the bulk of a tensor and finish its end, and the end of each thread's
share, with other instructions, so the same value may come out one unit in the last place apart
(measured: 1 element in 30 for sigmoid and SiLU, 1 in 6 for softplus).  exp and log1p on dense
memory do not do that, and sums and quotients are rounded correctly anywhere.  On a CUDA device
every element is computed by the same instructions: there torch's own versions serve, one launch
each.
"""

from __future__ import annotations

import torch

_LINEAR_FROM = 40.0  # from here on log(1 + exp(x)) is x, in fp64 too


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)), a new tensor of x's dtype."""
    if x.is_cuda:
        return torch.sigmoid(x)
    return x.neg().exp_().add_(1.0).reciprocal_()


def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x), a new tensor of x's dtype."""
    if x.is_cuda:
        return torch.nn.functional.silu(x)
    return x / x.neg().exp_().add_(1.0)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(x)), a new tensor of x's dtype; no threshold, exact for large x all the same."""
    if x.is_cuda:
        return torch.nn.functional.softplus(x, threshold=_LINEAR_FROM)
    return x.abs().neg_().exp_().log1p_().add_(x.clamp_min(0.0))
