"""What runs on a CUDA device is what was meant to."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.attention_inputs import op as attention_inputs
from hypic_sdk.kernels.attention_inputs import reference as attention_inputs_reference
from hypic_sdk.kernels.delta_gates import op as delta_gates
from hypic_sdk.kernels.delta_gates import reference as delta_gates_reference
from hypic_sdk.kernels.experts import op as experts
from hypic_sdk.kernels.experts import reference as experts_reference
from hypic_sdk.kernels.live_attention import op as live_attention
from hypic_sdk.kernels.live_attention import reference as live_attention_reference
from hypic_sdk.kernels.live_scan import op as live_scan
from hypic_sdk.kernels.live_scan import reference as live_scan_reference
from hypic_sdk.kernels.mlp import op as mlp
from hypic_sdk.kernels.mlp import reference as mlp_reference
from hypic_sdk.kernels.norm import op as norm
from hypic_sdk.kernels.norm import reference as norm_reference
from hypic_sdk.kernels.place_entries import op as place_entries
from hypic_sdk.kernels.place_entries import reference as place_entries_reference
from hypic_sdk.kernels.segment_scan import op as segment_scan
from hypic_sdk.kernels.segment_scan import reference as segment_scan_reference
from hypic_sdk.kernels.short_conv import op as short_conv
from hypic_sdk.kernels.short_conv import reference as short_conv_reference


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "door", "definition"),
    [
        ("add_rms_norm", norm, norm_reference),
        ("attention_inputs", attention_inputs, attention_inputs_reference),
        ("delta_gates", delta_gates, delta_gates_reference),
        ("gate_heads", mlp, mlp_reference),
        ("gated_rms_norm", norm, norm_reference),
        ("live_attention", live_attention, live_attention_reference),
        ("live_scan", live_scan, live_scan_reference),
        ("place_entries", place_entries, place_entries_reference),
        ("experts", experts, experts_reference),
        ("rms_norm", norm, norm_reference),
        ("route", experts, experts_reference),
        ("route_with_swiglu", experts, experts_reference),
        ("segment_scan", segment_scan, segment_scan_reference),
        ("short_conv", short_conv, short_conv_reference),
        ("swiglu", mlp, mlp_reference),
    ],
)
def test_kernels_are_taken(device, op, door, definition):
    load_kernel = getattr(door, f"_{op}_kernel")
    choice = backend.choose(op, getattr(definition, op), load_kernel, device.type)
    assert choice.implementation == "triton", choice.reason


@pytest.mark.gpu
def test_products_are_taken_in_full_fp32(device):
    """TF32 would cost three digits of every state."""
    assert not torch.backends.cuda.matmul.allow_tf32
    x = torch.randn(512, 512, device=device)
    error = (x @ x).cpu().double() - x.cpu().double() @ x.cpu().double()
    assert float(error.norm()) < 1e-5 * float((x @ x).norm())
