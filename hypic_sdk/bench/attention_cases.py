"""What `hypic bench kernels` runs of full attention: its inputs, itself, cached keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from hypic_sdk.bench.kernel_shapes import EXACT, ROUNDED, Case, Shapes, Tensors, drawn
from hypic_sdk.kernels.attention_inputs.op import attention_inputs
from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.kernels.live_attention.op import live_attention
from hypic_sdk.kernels.place_entries.op import place_entries
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles
from hypic_sdk.kernels.shared_attention.op import shared_attention
from hypic_sdk.kernels.shared_attention.plan import SharedInterior, SharedRun, Turn


def attention_cases(s: Shapes) -> list[Case]:
    """All of them at these shapes."""
    return [
        _inputs_case(s, "decode", s.requests),
        _inputs_case(s, "cold", s.rows, cold=True),
        _attention_case(s, "decode", [(1, s.context - 1)] * s.requests),
        _attention_case(s, "cold", [(s.segment, 0)]),
        _attention_case(s, "text", [(s.context // 2, s.context // 2)]),
        _attention_case(s, "assembly", _live_spans(s)),
        _shared_case(s, "query"),
        _shared_case(s, "key"),
        _place_case(s),
    ]


def _inputs_case(s: Shapes, name: str, rows: int, *, cold: bool = False) -> Case:
    """Rows of one projection, half of each query head a gate; cold ones go to an entry's slots."""
    Q, G, E = s.num_query_heads, s.num_kv_heads, s.attention_size

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        query, key, value = t["projected"].split((2 * Q * E, G * E, G * E), 1)
        query = query.unflatten(1, (Q, 2 * E))[..., :E]
        key, value = key.unflatten(1, (G, E)), value.unflatten(1, (G, E))
        slots = torch.arange(rows, device=key.device).flip(0)
        wide = torch.promote_types(key.dtype, torch.float32)
        cos, sin = rotary_angles(RotarySpec(1e7, E // 4), slots, wide)
        keys, values = (torch.full_like(t["slab"], torch.nan) for _ in range(2))
        norms = HeadNorms(t["query_scale"], t["key_scale"], eps=1e-6, zero_centred=True)
        nowhere = torch.full_like(slots, NO_SLOT)
        turned = torch.full_like(t["slab"], torch.nan) if cold else None

        def call() -> Sequence[torch.Tensor]:
            out = attention_inputs(
                *(query, key, value, nowhere if cold else slots, keys, values),
                norms=norms, cos=cos, sin=sin,
                entry_slots_L=slots if cold else None, turned_LGE=turned,
            )  # fmt: skip
            return [out, keys, values, *([] if turned is None else [turned])]

        return call

    draw = drawn(
        projected=(rows, 2 * (Q + G) * E), slab=(rows, G, E), query_scale=(E,), key_scale=(E,)
    )
    moved = 4 * rows * (Q + 2 * G) * E + 2 * rows * G * E * cold
    bounds = {"queries": ROUNDED, "keys": ROUNDED, "values": EXACT}
    bounds |= {"turned keys": ROUNDED} if cold else {}
    return Case("attention_inputs", name, moved, 0, draw, bind, bounds)


def _live_spans(s: Shapes) -> list[tuple[int, int]]:
    """Live rows of one assembled request: rows and first position of each run."""
    step = s.context // (s.gaps + 1)
    return [(s.run, i * step) for i in range(s.gaps + 1)]


def _attention_case(s: Shapes, name: str, spans: list[tuple[int, int]]) -> Case:
    """Runs of (rows, first position); each decoding request has slots of its own."""
    Q, G, E = s.num_query_heads, s.num_kv_heads, s.attention_size
    rows = sum(count for count, _ in spans)
    pairs = sum(count * first + count * (count + 1) // 2 for count, first in spans)
    apart = name == "decode"
    slots = sum(a + b for a, b in spans) if apart else max(a + b for a, b in spans)
    moved = 4 * rows * Q * E + 4 * slots * G * E

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        device = t["query"].device
        stops = [0]
        for count, _ in spans:
            stops.append(stops[-1] + count)
        runs, start = [], 0
        for (row, stop), (count, first) in zip(pairwise(stops), spans, strict=True):
            own = torch.arange(start, start + first + count, device=device)
            runs.append(AttentionRun(row, stop, first, own, start))
            start += first + count if apart else 0
        frozen = tuple(runs)
        return lambda: [live_attention(t["query"], frozen, t["keys"], t["values"], scale=E**-0.5)]

    draw = drawn(query=(rows, Q, E), keys=(slots, G, E), values=(slots, G, E))
    return Case("live_attention", name, moved, 4 * pairs * Q * E, draw, bind)


def _shared_case(s: Shapes, turn: Turn) -> Case:
    """The assembled request once more, its interiors' keys in their segments' own slots."""
    Q, G, E, spans = s.num_query_heads, s.num_kv_heads, s.attention_size, _live_spans(s)
    rows, interior = s.run * len(spans), s.context // len(spans) - s.run
    slots = rows + s.gaps * interior
    pairs = sum(
        s.run * (i * (s.run + interior)) + s.run * (s.run + 1) // 2 for i in range(len(spans))
    )

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        device = t["query"].device
        live, *own = torch.arange(slots, device=device).split((rows, *[interior] * s.gaps))
        interiors = tuple(
            SharedInterior(position + s.run, 0, ids)
            for (_, position), ids in zip(spans[:-1], own, strict=True)
        )
        runs = tuple(
            SharedRun(i * s.run, (i + 1) * s.run, position, live, i * s.run, interiors[:i])
            for i, (_, position) in enumerate(spans)
        )
        wide = torch.promote_types(t["query"].dtype, torch.float32)
        positions = torch.arange(s.context, device=device)
        cos, sin = rotary_angles(RotarySpec(1e7, E // 4), positions, wide)
        inputs = t["query"], runs, t["keys"], t["values"]
        return lambda: [shared_attention(*inputs, cos=cos, sin=sin, turn=turn, scale=E**-0.5)]

    draw = drawn(query=(rows, Q, E), keys=(slots, G, E), values=(slots, G, E))
    moved = 4 * rows * Q * E + 4 * slots * G * E
    return Case("shared_attention", f"{turn} turned", moved, 4 * pairs * Q * E, draw, bind)


def _place_case(s: Shapes) -> Case:
    """All layers' keys and values of cached interiors to a request's own slots."""
    A, G, E, rows = s.num_attention, s.num_kv_heads, s.attention_size, s.context

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        device = t["keys"].device
        source, target = torch.arange(2 * rows, device=device).chunk(2)
        wide = torch.promote_types(t["keys"].dtype, torch.float32)
        cos, sin = rotary_angles(RotarySpec(1e7, E // 4), target, wide)

        def call() -> Sequence[torch.Tensor]:
            place_entries(t["keys"], t["values"], source, target, cos=cos, sin=sin)
            return [t["keys"][:, rows:], t["values"][:, rows:]]

        return call

    shape = (A, 2 * rows, G, E)
    moved = 8 * A * rows * G * E
    bounds, draw = {"keys": ROUNDED, "values": EXACT}, drawn(keys=shape, values=shape)
    return Case("place_entries", "gaps", moved, 0, draw, bind, bounds)
