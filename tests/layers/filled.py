"""Layers of tests with random weights."""

from __future__ import annotations

from typing import TypeVar

import torch

Layer = TypeVar("Layer", bound=torch.nn.Module)


def filled(layer: Layer, seed: int = 0) -> Layer:
    """The same layer, every parameter drawn from a normal distribution."""
    rng = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        assert not parameter.requires_grad
        parameter.copy_(torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return layer


def rows(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random inputs."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)
