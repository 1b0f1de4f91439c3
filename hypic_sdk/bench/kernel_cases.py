"""What `hypic bench kernels` runs: every op at the shapes of one model, with its least work.

Bytes are those that must move (each input read once, each output written once), operations those of
the products; both are of the op as defined, whatever an implementation does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hypic_sdk.bench.attention_cases import attention_cases
from hypic_sdk.bench.kernel_shapes import (
    EXACT,
    GROUPED,
    KEPT,
    ROUNDED,
    Case,
    Shapes,
    Tensors,
    drawn,
    normal,
)
from hypic_sdk.bench.row_cases import router_logits, row_cases
from hypic_sdk.bench.sampling_cases import sampling_cases
from hypic_sdk.families.gated_delta_rule import gated_delta_rule
from hypic_sdk.kernels.experts.op import Shared, experts, route
from hypic_sdk.kernels.items import ColdRun, Item, ItemKind
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.segment_scan.op import segment_scan
from hypic_sdk.kernels.short_conv.op import short_conv

LOAD, RUN, GAP, SAVE = ItemKind


def kernel_cases(s: Shapes) -> list[Case]:
    """All cases at these shapes."""
    return [
        *row_cases(s),
        _conv_case(s, "cold", 0),
        _conv_case(s, "decode", s.requests),
        _cold_scan_case(s),
        _decode_scan_case(s),
        _assembly_scan_case(s),
        *attention_cases(s),
        _experts_case(s, "cold", s.rows),
        _experts_case(s, "cold, row-independent", s.rows, alike=True),
        _experts_case(s, "assembly", (s.gaps + 1) * s.run),
        _experts_case(s, "decode", s.requests),
        _experts_case(s, "decode, one row", 1),
        *sampling_cases(s),
    ]


def _cold_runs(s: Shapes) -> tuple[ColdRun, ...]:
    """As many whole segments as fit the rows, with seams as the default settings have them."""
    starts = range(0, s.rows - s.segment + 1, s.segment)
    return tuple(
        ColdRun(start, start + s.segment, 0, s.segment, 4, 4, i, i)
        for i, start in enumerate(starts)
    )


def _decode_items(requests: int) -> tuple[Item, ...]:
    return tuple(
        item
        for i in range(requests)
        for item in (Item(LOAD, slot=i), Item(RUN, i, i + 1), Item(SAVE, slot=i))
    )


def _conv_case(s: Shapes, name: str, decoding: int) -> Case:
    """Cold segments, or with `decoding` one row of each request."""
    runs = () if decoding else _cold_runs(s)
    rows, channels, slots = decoding or s.rows, s.channels, decoding or len(runs)
    items = _decode_items(decoding)
    moved = 2 * channels * (2 * rows + (2 * 3 * decoding))

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        def call() -> Sequence[torch.Tensor]:
            out = short_conv(
                *(t["x"], t["weight"], None),
                activation="silu",
                items=items,
                cold_runs=runs,
                tails_SWC=t["tails"],
            )
            return [out, t["tails"]]

        return call

    draw = drawn(x=(rows, channels), weight=(channels, 4), tails=(slots, 3, channels))
    bounds = {"rows": ROUNDED, "tails": EXACT}
    return Case("short_conv", name, moved, 0, draw, bind, bounds)


def _scan_tensors(
    s: Shapes, rows: int, slots: int, device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Natural inputs of the gated delta rule; transitions and states as a store keeps them."""
    size, heads = s.head_size, s.num_heads
    query, key = (normal(device, dtype, rows, s.num_key_heads, size) for _ in range(2))
    value = normal(device, dtype, rows, heads, size)
    strength, decay = (normal(device, dtype, rows, heads) for _ in range(2))
    bias = torch.full((heads,), -3.0, device=device)
    gates = strength, decay, torch.zeros_like(bias), bias
    made = gated_delta_rule(query, key, value, *gates).written_out()
    assert made.log_decay is not None, "the family has a decay"
    assert made.erase is not None, "the family erases"
    transitions = normal(device, torch.float16, slots, heads, size, size) / (2 * size**0.5)
    return {
        "query": query,
        "key": key,
        "value": value,
        "log_decay": made.log_decay,
        "erase": made.erase,
        "states": normal(device, torch.float32, slots, heads, size, size),
        "transitions": transitions,
    }


def _scan_inputs(t: Tensors) -> ScanInputs:
    return ScanInputs(
        t["query"],
        t["key"],
        t["value"],
        t["log_decay"],
        t["erase"],
        scale=t["key"].shape[-1] ** -0.5,
        unit_keys=True,
    )


def _scan_bytes(s: Shapes, rows: int) -> int:
    """Query, key, value and output in 16 bits, decay and strength in 32."""
    return rows * (2 * (s.channels + s.num_heads * s.head_size) + 8 * s.num_heads)


def _cold_scan_case(s: Shapes) -> Case:
    """Segments from a zero state, with their pairs: (S, T) of each."""
    runs = _cold_runs(s)
    rows = runs[-1].row_stop
    # a token reads and writes S (6 K V) and T (4 K K); the head seam's state goes out as well
    flops = rows * s.num_heads * 10 * s.head_size**2
    moved = _scan_bytes(s, rows) + len(runs) * s.state * 6

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        inputs, out = _scan_inputs(t), torch.full_like(t["value"], torch.nan)

        def call() -> Sequence[torch.Tensor]:
            segment_scan(inputs, runs, t["states"], t["transitions"], out_LHV=out)
            return [out[:rows], t["states"], t["transitions"]]

        return call

    def draw(device: torch.device, dtype: torch.dtype) -> Tensors:
        return _scan_tensors(s, s.rows, len(runs), device, dtype)

    bounds = {"rows": ROUNDED, "states": KEPT, "transitions": KEPT}
    return Case("segment_scan", "cold", moved, flops, draw, bind, bounds)


def _live_case(s: Shapes, name: str, items: tuple[Item, ...], rows: int, moved: int) -> Case:
    # slots before the first that is saved to are segments', and stay as they are
    num_read = min(item.slot for item in items if item.kind == SAVE)
    bounds = {"rows": ROUNDED, "states": KEPT, **({"segments": EXACT} if num_read else {})}

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        inputs = _scan_inputs(t)

        def call() -> Sequence[torch.Tensor]:
            out = live_scan(inputs, items, t["states"], t["transitions"])
            states = t["states"]
            return [out, states[num_read:], *([states[:num_read]] if num_read else [])]

        return call

    def draw(device: torch.device, dtype: torch.dtype) -> Tensors:
        return _scan_tensors(s, rows, 1 + max(item.slot for item in items), device, dtype)

    return Case("live_scan", name, moved, 0, draw, bind, bounds)


def _decode_scan_case(s: Shapes) -> Case:
    moved = _scan_bytes(s, s.requests) + s.requests * s.state * 8
    return _live_case(s, "decode", _decode_items(s.requests), s.requests, moved)


def _assembly_scan_case(s: Shapes) -> Case:
    """One request: a run before each gap and one behind the last."""
    items, row = [Item(LOAD)], 0
    for gap in range(s.gaps):
        items += [Item(RUN, row, row + s.run), Item(GAP, 0, 0, gap, gap, s.segment)]
        row += s.run
    items += [Item(RUN, row, row + s.run), Item(SAVE, slot=s.gaps)]
    rows = row + s.run
    moved = _scan_bytes(s, rows) + s.gaps * s.state * 6 + s.state * 4
    return _live_case(s, f"assembly, {s.gaps} gaps", tuple(items), rows, moved)


def _experts_case(s: Shapes, name: str, rows: int, *, alike: bool = False) -> Case:
    # rows choose evenly and on their own, so this many experts are some row's
    used = round(s.num_experts * (1.0 - (1.0 - s.top_k / s.num_experts) ** rows))
    weights = used * 3 * s.width * s.inner
    flops = 6 * rows * s.top_k * s.width * s.inner

    def draw(device: torch.device, dtype: torch.dtype) -> Tensors:
        return {
            "logits": router_logits(s, rows, device, dtype),
            **drawn(
                **dict.fromkeys(("x", "shared"), (rows, s.width)),
                weight_up=(s.num_experts, 2 * s.inner, s.width),
                weight_down=(s.num_experts, s.width, s.inner),
            )(device, dtype),
        }

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        def call() -> Sequence[torch.Tensor]:
            routing = route(t["logits"], top_k=s.top_k, renormalise=True)
            weights = t["weight_up"], t["weight_down"]
            shared = Shared(t["shared"], t["logits"][:, :1])
            return [experts(t["x"], routing, *weights, row_independent=alike, shared=shared)]

        return call

    moved, bounds = 2 * weights + 6 * rows * s.width, {"rows": GROUPED}
    return Case("experts", name, moved, flops, draw, bind, bounds)
