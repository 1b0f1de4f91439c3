"""Ops that were several launches, at full size, against fp64 on the CPU."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.kernels.delta_gates.op import delta_gates
from hypic_sdk.kernels.norm.op import add_rms_norm, rms_norm
from tests.closeness import assert_close

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_residual_and_norm(device, dtype):
    """The bits of the two steps, at the width of a large model."""
    x, added = (torch.randn(1037, 2048, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(2048, device=device)
    total, normed = add_rms_norm(x, added, weight, eps=1e-6, zero_centred=True)
    assert torch.equal(total, x + added)
    assert torch.equal(normed, rms_norm(total, weight, eps=1e-6, zero_centred=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gates(device, dtype):
    """Slices of a projection, as the model hands them over."""
    projected = (5 * torch.randn(8193, 96, device=device)).to(dtype)
    strength, decay = projected[:, :32], projected[:, 64:]
    A_log, bias = (torch.randn(32, device=device) for _ in range(2))
    log_decay, erase = delta_gates(strength, decay, A_log, bias, torch.float32)
    shifted = (decay.float() + bias).cpu().double()
    want = -A_log.cpu().double().exp() * torch.nn.functional.softplus(shifted, threshold=40)
    assert_close("log decay", log_decay.cpu(), want, rel_rms=1e-6)
    assert_close("erase", erase.cpu(), strength.cpu().double().sigmoid(), rel_rms=1e-6)
