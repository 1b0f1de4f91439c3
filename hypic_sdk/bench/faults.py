"""Faults planted on purpose: a bench that does not see them is too weak to judge anything.

They write into entries that an engine holds, and put back what stood there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from hypic_sdk.algebra.rotary import RotarySpec, rotary_angles, rotate
from hypic_sdk.bench.probe import Probe, inner_parts
from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.prompt.segment import Role, SegmentedPrompt
from hypic_sdk.store.entries import SegmentEntry
from hypic_sdk.store.slab import Slabs

Fault = Callable[[Slabs, Sequence[SegmentEntry], RotarySpec | None], None]

# far enough that a model whose facts may stand anywhere notices: `hypic bench choices` tells what
# smaller offsets do; 64 tokens were not seen by one taught with documents in any order
WRONG_OFFSET_TOKENS = 4096


def swap_transitions(
    slabs: Slabs, entries: Sequence[SegmentEntry], rotary: RotarySpec | None
) -> None:
    """Every entry gets the transition of the next one."""
    if slabs.transitions is not None:
        rows = torch.tensor([e.transition_slot for e in entries if e.transition_slot != NO_SLOT])
        slabs.transitions[rows] = slabs.transitions[rows.roll(1)].clone()


def shift_keys(
    slabs: Slabs,
    entries: Sequence[SegmentEntry],
    rotary: RotarySpec | None,
    *,
    num_tokens: int = WRONG_OFFSET_TOKENS,
) -> None:
    """Cached keys are turned as if their segment stood `num_tokens` further on."""
    if rotary is None:
        return
    dtype = torch.promote_types(slabs.keys.dtype, torch.float32)
    for entry in entries:
        slots = entry.kv_slots.to(slabs.keys.device)
        positions = torch.full_like(slots, num_tokens)
        cos, sin = rotary_angles(rotary, positions, dtype)
        for keys in slabs.keys:
            turned = rotate(keys[slots], cos, sin, rotary.interleaved)
            keys[slots] = turned.to(keys.dtype)


def zero_states(slabs: Slabs, entries: Sequence[SegmentEntry], rotary: RotarySpec | None) -> None:
    """The recurrent state is empty after every interior, whatever stood before it."""
    for entry in entries:
        slabs.states[entry.state_slot] = 0
        if slabs.transitions is not None and entry.transition_slot != NO_SLOT:
            # of a scalar or diagonal transition the log-decay is kept
            is_dense = slabs.transitions.dim() == 5
            slabs.transitions[entry.transition_slot] = 0.0 if is_dense else -1e4


def flip_bit(slabs: Slabs, entries: Sequence[SegmentEntry], rotary: RotarySpec | None) -> None:
    """The lowest bit of one number of the first entry's state."""
    state = slabs.states[entries[0].state_slot].flatten()
    bits = state[:1].view(torch.int64 if state.dtype == torch.float64 else torch.int32)
    bits ^= 1


@contextmanager
def planted(probe: Probe, prompt: SegmentedPrompt, fault: Fault) -> Iterator[int]:
    """The fault in all entries of the prompt; gives how many there are (they are warmed first)."""
    probe.warm(prompt)
    attention = probe.model.spec.attention
    rotary = None if attention is None else attention.rotary
    with probe.engine.opened(inner_parts(prompt)) as (slabs, found):
        entries = list({e.key: e for e in found if e is not None}.values())
        saved = [(whole, at, whole[at].clone()) for whole, at in _places(slabs, entries)]
        if entries:
            fault(slabs, entries, rotary)
        try:
            yield len(entries)
        finally:
            for whole, at, before in saved:
                whole[at] = before


def _places(
    slabs: Slabs, entries: Sequence[SegmentEntry]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Slabs of rows, and the rows that the entries keep in them."""
    device = slabs.states.device
    yield slabs.states, torch.tensor([e.state_slot for e in entries], dtype=torch.int64).to(device)
    if slabs.transitions is not None:
        rows = [e.transition_slot for e in entries if e.transition_slot != NO_SLOT]
        yield slabs.transitions, torch.tensor(rows, dtype=torch.int64).to(device)
    slots = torch.cat([torch.empty(0, dtype=torch.int64), *(e.kv_slots for e in entries)])
    for keys in slabs.keys:
        yield keys, slots.to(device)


@contextmanager
def hidden_keys(probe: Probe, prompt: SegmentedPrompt) -> Iterator[int]:
    """No live row sees a cached key; gives how many entries there are."""
    probe.warm(prompt)
    inner = [(p, s) for p, s in zip(prompt.parts, prompt.starts, strict=True)
             if p.role is Role.INNER]  # fmt: skip
    with probe.engine.opened([part for part, _ in inner]) as (_, found):
        spans = [
            torch.arange(start + e.seam.head_tokens, start + e.num_tokens - e.seam.tail_tokens)
            for (_, start), e in zip(inner, found, strict=True)
            if e is not None
        ]
    probe.model.hidden_positions = torch.cat([torch.empty(0, dtype=torch.int64), *spans])
    try:
        yield len(spans)
    finally:
        probe.model.hidden_positions = None
