from __future__ import annotations

import pytest
import torch

from hypic_sdk.layers.norm import GatedRMSNorm, RMSNorm
from tests.closeness import assert_close
from tests.layers.filled import filled, rows

EPS = 0.3  # large, so that a wrong place for it shows


def normalised(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + EPS).sqrt()


@pytest.mark.parametrize("zero_centred", [False, True])
def test_rms_norm_is_its_formula(zero_centred: bool) -> None:
    norm = filled(RMSNorm(7, eps=EPS, zero_centred=zero_centred, dtype=torch.float64))
    x = rows(5, 3, 7)
    want = normalised(x) * (norm.weight + 1 if zero_centred else norm.weight)
    assert_close("norm", norm(x), want, rel_rms=1e-14)


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_gated_norm_is_its_formula(activation: str, gate_first: bool) -> None:
    norm = filled(
        GatedRMSNorm(
            7,
            eps=EPS,
            activation=activation,  # type: ignore[arg-type]
            gate_first=gate_first,
            dtype=torch.float64,
        )
    )
    x, gate = rows(5, 3, 7), rows(5, 3, 7, seed=2)
    factor = getattr(torch.nn.functional, activation)(gate)
    want = normalised(x * factor) if gate_first else normalised(x) * factor
    assert_close("gated norm", norm(x, gate), want * norm.weight, rel_rms=1e-14)


def test_narrow_rows_are_normalised_in_fp32() -> None:
    norm = filled(RMSNorm(64, eps=1e-6, zero_centred=True, dtype=torch.bfloat16))
    x = rows(9, 64, dtype=torch.bfloat16)
    wide = filled(RMSNorm(64, eps=1e-6, zero_centred=True, dtype=torch.float32))
    wide.weight.copy_(norm.weight)
    assert torch.equal(norm(x), wide(x.float()).to(torch.bfloat16))
