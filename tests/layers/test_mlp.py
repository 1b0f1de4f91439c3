from __future__ import annotations

import torch

from hypic_sdk.layers.mlp import GatedMLP
from tests.closeness import assert_close
from tests.layers.filled import filled, rows
from tests.plain_context import PlainContext


def test_gate_is_the_first_half_of_the_weight() -> None:
    mlp = filled(GatedMLP(6, 11, dtype=torch.float64))
    gate, up = mlp.gate_up.weight[:11], mlp.gate_up.weight[11:]
    x = rows(9, 6)
    inner = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    assert_close("mlp", mlp(x, PlainContext()), inner @ mlp.down.weight.T, rel_rms=1e-14)
