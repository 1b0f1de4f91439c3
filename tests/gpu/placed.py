"""Inputs as a device gets them, and the same numbers in fp64 on the CPU for the definition."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from hypic_sdk.families.recurrence import Recurrence

# relative RMS: fp32 sums of some hundred terms stay below 1e-5, products in tf32 are near 3e-4;
# low precision is one rounding of the result (half a unit) and of what lies between
BOUNDS = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-10,
}


@dataclass(frozen=True)
class Pair:
    """One tensor twice."""

    here: torch.Tensor  # on the device, in the dtype under test
    wide: torch.Tensor  # the same numbers on the CPU, floats in fp64

    @classmethod
    def of(cls, x: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Pair:
        """Round `x` (CPU) to `dtype` and place it; what is not float keeps its dtype."""
        if x.is_floating_point() and dtype is not None:
            x = x.to(dtype)
        wide = x.double() if x.is_floating_point() else x
        return cls(x.to(device, copy=True), wide.clone())


def normal(device: torch.device, dtype: torch.dtype, *shape: int) -> Pair:
    """Standard normal numbers, other ones at each call."""
    return Pair.of(torch.randn(shape, dtype=torch.float64), device, dtype)


def moved(recurrence: Recurrence, device: torch.device) -> Recurrence:
    """The same recurrence on a device."""
    values = {field.name: getattr(recurrence, field.name) for field in fields(recurrence)}
    tensors = {name: x.to(device) for name, x in values.items() if isinstance(x, torch.Tensor)}
    return replace(recurrence, **tensors)


def same_places_written(what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Fail unless NaN (never written) stands in the same places."""
    assert torch.equal(got.isnan().cpu(), want.isnan().cpu()), f"{what}: other places were written"
