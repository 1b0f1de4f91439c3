from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.layers.full_attention import AttentionLayout, FullAttention
from tests.closeness import assert_close
from tests.layers.filled import filled, rows
from tests.plain_context import PlainContext

PLAIN = AttentionLayout(width=10, num_query_heads=6, num_kv_heads=2, head_size=8, rotary=None)


def by_definition(layer: FullAttention, x: torch.Tensor, position: int) -> torch.Tensor:
    """One head at a time, one query at a time."""
    layout, E = layer.layout, layer.layout.head_size
    stops = list(itertools.accumulate(layout.projected))
    bias = layer.qkv.bias if layer.qkv.bias is not None else torch.zeros(stops[-1])
    q, k, v = (x @ layer.qkv.weight.T + bias).tensor_split(stops[:-1], dim=1)
    step = 2 * E if layout.output_gate else E
    out = torch.zeros(len(x), layout.num_query_heads * E, dtype=x.dtype)
    for head in range(layout.num_query_heads):
        group = head // (layout.num_query_heads // layout.num_kv_heads)
        query = q[:, head * step : head * step + E]
        key, value = (t[:, group * E : (group + 1) * E] for t in (k, v))
        query, key = normed(layer, query, key)
        for i in range(len(x)):
            scores = torch.stack(
                [
                    turned(query[i], position + i, layout) @ turned(key[j], position + j, layout)
                    for j in range(i + 1)
                ]
            )
            row = (scores / E**0.5).softmax(0) @ value[: i + 1]
            if layout.output_gate:
                row = row * torch.sigmoid(q[i, head * step + E : (head + 1) * step])
            out[i, head * E : (head + 1) * E] = row
    want = out @ layer.output.weight.T
    return want if layer.output.bias is None else want + layer.output.bias


def normed(
    layer: FullAttention, query: torch.Tensor, key: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if layer.query_norm is None or layer.key_norm is None:
        return query, key
    eps = layer.layout.norm_eps
    assert eps is not None
    query, key = (
        x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + norm.weight)
        for x, norm in ((query, layer.query_norm), (key, layer.key_norm))
    )
    return query, key


def turned(x: torch.Tensor, position: int, layout: AttentionLayout) -> torch.Tensor:
    """Pair i of the rotary halves by position * theta^(-2i / dims)."""
    if layout.rotary is None:
        return x
    x, dims = x.clone(), layout.rotary.rotary_dims
    for i in range(dims // 2):
        angle = torch.tensor(position * layout.rotary.theta ** (-2 * i / dims), dtype=x.dtype)
        a, b = x[i].clone(), x[i + dims // 2].clone()
        x[i] = a * angle.cos() - b * angle.sin()
        x[i + dims // 2] = b * angle.cos() + a * angle.sin()
    return x


@pytest.mark.parametrize("rotary", [None, RotarySpec(100.0, 4)], ids=["still", "rotary"])
@pytest.mark.parametrize("norm_eps", [None, 0.3], ids=["raw", "normed"])
@pytest.mark.parametrize("output_gate", [False, True], ids=["open", "gated"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_attention_is_its_definition(
    rotary: RotarySpec | None, norm_eps: float | None, output_gate: bool, bias: bool
) -> None:
    layout = replace(PLAIN, rotary=rotary, norm_eps=norm_eps, output_gate=output_gate, bias=bias)
    layer = filled(FullAttention(2, layout, dtype=torch.float64))
    x, position = rows(7, 10), 5
    context = PlainContext(position=position)
    context.positions = torch.arange(position, position + 7)
    got = layer(x, context)
    assert set(context.keys) == {2}
    assert_close("attention", got, by_definition(layer, x, position), rel_rms=1e-12)
