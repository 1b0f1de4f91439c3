from __future__ import annotations

import pytest
import torch

from hypic_sdk.layers.short_conv import ShortConv
from tests.closeness import assert_close
from tests.layers.filled import filled, rows
from tests.plain_context import PlainContext


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", None])
def test_conv_asks_the_context_about_its_own_layer(bias: bool, activation: str | None) -> None:
    conv = filled(ShortConv(3, 5, 4, dtype=torch.float64, bias=bias, activation=activation))
    x, context = rows(9, 5), PlainContext()
    got = torch.cat([conv(x[:2], context), conv(x[2:], context)])
    assert set(context.tails) == {3}
    padded = torch.nn.functional.pad(x.T, (3, 0))
    want = torch.nn.functional.conv1d(padded, conv.weight[:, None], conv.bias, groups=5).T
    want = torch.nn.functional.silu(want) if activation else want
    assert_close("conv", got, want, rel_rms=1e-14)
