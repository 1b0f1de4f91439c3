"""What `hypic bench kernels` runs row by row: products, norms, gates, the choice of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from hypic_sdk.bench.kernel_shapes import (
    EXACT,
    IN_FP32,
    ROUNDED,
    Case,
    Shapes,
    Tensors,
    drawn,
)
from hypic_sdk.kernels.delta_gates.op import delta_gates
from hypic_sdk.kernels.experts.op import route, route_with_swiglu
from hypic_sdk.kernels.linear.op import linear
from hypic_sdk.kernels.mlp.op import gate_heads, swiglu
from hypic_sdk.kernels.norm.op import add_rms_norm, gated_rms_norm, rms_norm


def row_cases(s: Shapes) -> list[Case]:
    """All of them at these shapes."""
    return [
        _product_case(s, "any rows", row_independent=False),
        _product_case(s, "row-independent", row_independent=True),
        *_norm_cases(s),
        *_gate_cases(s),
        _route_case(s, "cold", s.rows),
        _route_case(s, "decode", s.requests),
        _route_with_swiglu_case(s, "cold", s.rows),
        _route_with_swiglu_case(s, "decode", s.requests),
    ]


def _product_case(s: Shapes, name: str, *, row_independent: bool) -> Case:
    rows, width, outputs = s.rows, s.width, s.projected

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        return lambda: [linear(t["x"], t["weight"], row_independent=row_independent)]

    moved = 2 * (rows * (width + outputs) + width * outputs)
    draw = drawn(x=(rows, width), weight=(outputs, width))
    return Case("linear", name, moved, 2 * rows * width * outputs, draw, bind)


def _norm_cases(s: Shapes) -> list[Case]:
    rows, width, heads, size = s.rows, s.width, s.num_heads, s.head_size
    norm = partial(rms_norm, eps=1e-6, zero_centred=True)
    added = partial(add_rms_norm, eps=1e-6, zero_centred=True)
    gated = partial(gated_rms_norm, eps=1e-6, activation="silu", gate_first=False)
    return [
        Case(
            "rms_norm",
            "hidden rows",
            4 * rows * width,
            0,
            drawn(x=(rows, width), scale=(width,)),
            lambda t: lambda: [norm(t["x"], t["scale"])],
        ),
        Case(
            "add_rms_norm",
            "hidden rows",
            8 * rows * width,
            0,
            drawn(x=(rows, width), added=(rows, width), scale=(width,)),
            lambda t: lambda: added(t["x"], t["added"], t["scale"]),
            {"sum": ROUNDED, "norm": ROUNDED},
        ),
        Case(
            "gated_rms_norm",
            "value heads",
            6 * rows * heads * size,
            0,
            drawn(x=(rows, heads, size), gate=(rows, heads, size), scale=(size,)),
            lambda t: lambda: [gated(t["x"], t["gate"], t["scale"])],
        ),
    ]


def _gate_cases(s: Shapes) -> list[Case]:
    rows, heads, Q, E = s.rows, s.num_heads, s.num_query_heads, s.attention_size
    return [
        Case(
            "swiglu",
            "shared expert",
            6 * rows * s.inner,
            0,
            drawn(gate_up=(rows, 2 * s.inner)),
            lambda t: lambda: [swiglu(t["gate_up"])],
        ),
        Case(
            "gate_heads",
            "query heads",
            6 * rows * Q * E,
            0,
            drawn(x=(rows, Q, E), query_gate=(rows, Q, 2 * E)),
            lambda t: lambda: [gate_heads(t["x"], t["query_gate"][..., E:])],
        ),
        Case(
            "delta_gates",
            "value heads",
            12 * rows * heads,
            0,
            drawn(logits=(rows, 2 * heads), A_log=(heads,), bias=(heads,)),
            _bind_delta_gates,
            {"log decay": IN_FP32, "erase": IN_FP32},
        ),
    ]


def _bind_delta_gates(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
    strength, decay = t["logits"].chunk(2, 1)
    wide = torch.promote_types(decay.dtype, torch.float32)
    return lambda: delta_gates(strength, decay, t["A_log"], t["bias"], wide)


def router_logits(s: Shapes, rows: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Ties and near ties among them would send a row elsewhere in another precision."""
    order = torch.rand(rows, s.num_experts, device=device).argsort(-1)
    return order.to(dtype) / 16.0


def _route_bytes(s: Shapes, rows: int) -> int:
    """Logits in 16 bits; choices in 64 and shares in 32."""
    return rows * (2 * s.num_experts + 12 * s.top_k)


def _route_case(s: Shapes, name: str, rows: int) -> Case:
    def draw(device: torch.device, dtype: torch.dtype) -> Tensors:
        return {"logits": router_logits(s, rows, device, dtype)}

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        return lambda: route(t["logits"], top_k=s.top_k, renormalise=True)

    bounds = {"choices": EXACT, "shares": IN_FP32}
    return Case("route", name, _route_bytes(s, rows), 0, draw, bind, bounds)


def _route_with_swiglu_case(s: Shapes, name: str, rows: int) -> Case:
    def draw(device: torch.device, dtype: torch.dtype) -> Tensors:
        gate_up = drawn(gate_up=(rows, 2 * s.inner))(device, dtype)
        return {"logits": router_logits(s, rows, device, dtype), **gate_up}

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        def call() -> Sequence[torch.Tensor]:
            routing, inner = route_with_swiglu(
                t["logits"], t["gate_up"], top_k=s.top_k, renormalise=True
            )
            return [*routing, inner]

        return call

    moved = _route_bytes(s, rows) + 6 * rows * s.inner
    bounds = {"choices": EXACT, "shares": IN_FP32, "rows": ROUNDED}
    return Case("route_with_swiglu", name, moved, 0, draw, bind, bounds)
