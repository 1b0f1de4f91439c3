"""What weights and segments take, and how many segments the budget holds."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import torch

from hypic_sdk.config import ReuseConfig, StoreConfig
from hypic_sdk.doctor.report import MemoryPlan, SegmentCost
from hypic_sdk.store.layout import SlabSizes, StoreLayout

LENGTHS = (256, 1024, 4096, 16384)
"""Tokens of the segments that the plan tells about."""

# Linux says how much a program may take without making others swap
_MEMINFO = Path("/proc/meminfo")
# no seam is wider than a share of the segment, so the search for the shortest kept one ends
_LONGEST_MINIMUM = 1 << 20


def memory_plan(
    layout: StoreLayout,
    store: StoreConfig,
    reuse: ReuseConfig,
    *,
    weights_bytes: int,
    max_context_tokens: int,
    device: torch.device,
) -> MemoryPlan:
    """The plan for one model.

    Args:
        max_context_tokens: longer segments fit no prompt, and are not told about.
    Raises:
        ConfigError: the budget can not hold one segment and one request over it.
    """
    sizes, conv_width = layout.split(store), layout.conv_rows + 1
    return MemoryPlan(
        weights_bytes=weights_bytes,
        available_bytes=available_bytes(device),
        budget_bytes=store.budget_bytes,
        state_row_bytes=layout.state_row_bytes,
        transition_row_bytes=layout.transition_row_bytes,
        kv_token_bytes=layout.kv_slot_bytes,
        num_state_rows=sizes.num_state_rows,
        num_transition_rows=sizes.num_transition_rows,
        num_kv_tokens=sizes.num_kv_slots,
        min_segment_tokens=shortest_kept(reuse, conv_width) if reuse.mode.segments else None,
        seam=str(reuse.seam) if reuse.mode.seam else "0",
        segments=tuple(
            segment_cost(num_tokens, layout, sizes, reuse, conv_width)
            for num_tokens in LENGTHS
            if reuse.mode.segments and num_tokens <= max_context_tokens
        ),
    )


def segment_cost(
    num_tokens: int, layout: StoreLayout, sizes: SlabSizes, reuse: ReuseConfig, conv_width: int
) -> SegmentCost:
    """Bytes of a segment, and how many of its length the slabs hold."""
    if not reuse.keeps(num_tokens, conv_width):
        return SegmentCost(num_tokens, 0, 0, 0)
    seam = reuse.seam_widths(num_tokens, conv_width)
    interior = num_tokens - seam.head_tokens - seam.tail_tokens
    limits = [sizes.num_state_rows] if layout.keeps_states else []
    if layout.keeps_transitions:
        limits.append(sizes.num_transition_rows)
    if layout.keeps_kv:
        limits.append(sizes.num_kv_slots // interior)
    return SegmentCost(num_tokens, interior, layout.segment_bytes(interior), min(limits))


def shortest_kept(reuse: ReuseConfig, conv_width: int) -> int:
    """Tokens of the shortest segment that is kept."""
    shortest = reuse.min_segment_tokens
    while shortest < _LONGEST_MINIMUM and not reuse.keeps(shortest, conv_width):
        shortest += 1
    return shortest


def available_bytes(device: torch.device) -> int | None:
    """Memory that is free on the device now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    with contextlib.suppress(OSError, ValueError):
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
        return None if found is None else int(found[1]) * 1024
    return None
