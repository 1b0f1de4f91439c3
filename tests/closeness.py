"""The one comparison of tensors that tests use."""

from __future__ import annotations

import torch


def relative_rms(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| over |want|, both root mean square over all elements."""
    difference = (got.double() - want.double()).square().mean().sqrt()
    return float(difference / want.double().square().mean().sqrt().clamp_min(1e-12))


def assert_close(what: str, got: torch.Tensor, want: torch.Tensor, *, rel_rms: float) -> None:
    """Fail unless shapes agree, `got` is finite and its relative RMS error is within the bound."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)} != {tuple(want.shape)}"
    assert torch.isfinite(got).all(), f"{what}: not finite"
    error = relative_rms(got, want)
    assert error <= rel_rms, f"{what}: relative RMS error {error:.2e} > {rel_rms:.0e}"
