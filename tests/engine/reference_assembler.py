"""The definition of design 3, token by token: no packing, no slots, no kernels, no cuts.

Every token goes through the model alone.  A segment's pair is the product of explicit per-token
transition matrices; attention is a sum over a dictionary of positions.  Slow, and meant to be read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hypic_sdk.config import ReuseConfig
from hypic_sdk.models.base import CausalLM
from hypic_sdk.prompt.segment import Role, SegmentedPrompt
from tests.engine.token_context import TokenContext, Vectors, rotate


@dataclass
class Cached:
    """What is kept of a segment's interior [head, n - tail)."""

    head: int
    stop: int
    transitions: list[torch.Tensor]  # per linear layer [H, K, K]
    end_states: list[torch.Tensor]  # per linear layer [H, K, V], from zero at token `head`
    conv_tails: list[list[torch.Tensor]]  # per linear layer the last W-1 inputs [C]
    keys: list[Vectors]  # per attention layer, unrotated, by LOCAL position
    values: list[Vectors]


@torch.no_grad()
def cold(
    model: CausalLM, token_ids: tuple[int, ...], head: int, tail: int, dtype: torch.dtype
) -> Cached:
    """Design 3.2: the segment alone; the pair, conv tail, K and V of its interior."""
    context, stop = TokenContext(model.spec, dtype), len(token_ids) - tail
    tails = context.history
    for position, token in enumerate(token_ids):
        context.position, context.recording = position, head <= position < stop
        model.forward(torch.tensor([token]), context)
        if position == stop - 1:
            tails = [list(inputs) for inputs in context.history]
    inside = [
        [{p: x[p] for p in range(head, stop)} for x in side]
        for side in (context.raw_keys, context.values)
    ]
    return Cached(
        head, stop, [t for t, _ in context.pairs], [s for _, s in context.pairs], tails, *inside
    )


def place(
    context: TokenContext, segment: Cached, start: int, reuse: ReuseConfig, stored: torch.dtype
) -> None:
    """Design 3.5: a gap advances every state, replaces the conv tail and stands its keys."""
    mode, linear = reuse.mode, context.spec.linear
    for j, end_state in enumerate(segment.end_states):
        if mode.rotate and linear.key_rotation is not None:
            end_state = rotate(end_state.mT, linear.key_rotation, start).mT
        moved = context.states[j]
        if mode.transition:
            moved = segment.transitions[j].to(stored).to(context.dtype) @ moved
        context.states[j] = moved + end_state
        context.history[j] = list(segment.conv_tails[j])
    for a, raw in enumerate(segment.keys):
        for local, key in raw.items():
            turn = start + local if mode.rotate else local
            context.keys[a][start + local] = rotate(key, context.spec.attention.rotary, turn)
            context.values[a][start + local] = segment.values[a][local]


@torch.no_grad()
def assemble(
    model: CausalLM,
    prompt: SegmentedPrompt,
    reuse: ReuseConfig,
    *,
    num_tokens: int,
    dtype: torch.dtype = torch.float64,
    stored: torch.dtype = torch.float64,
):
    """Greedy tokens and their log-probabilities [num_tokens, vocab], as design 3 defines them."""
    context = TokenContext(model.spec, dtype)
    conv_width = model.spec.linear.conv_width

    def live(token: int, position: int) -> torch.Tensor:
        context.position = position
        return model.forward(torch.tensor([token]), context)[-1:]

    hidden = None
    for part, start in zip(prompt.parts, prompt.starts, strict=True):
        count, interior = len(part.token_ids), range(0)
        if reuse.mode.segments and part.role is Role.INNER and reuse.keeps(count, conv_width):
            seam = reuse.seam_widths(count, conv_width)
            interior = range(seam.head_tokens, count - seam.tail_tokens)
            segment = cold(model, part.token_ids, seam.head_tokens, seam.tail_tokens, dtype)
        for local, token in enumerate(part.token_ids):
            if local in interior:
                if local == interior.start:
                    place(context, segment, start, reuse, stored)
                continue
            hidden = live(token, start + local)
    chosen, logprobs = [], []
    for step in range(num_tokens):
        logits = model.logits(hidden, row_independent=False)[0]
        logprobs.append(logits.log_softmax(-1))
        chosen.append(int(logits.argmax()))
        hidden = live(chosen[-1], prompt.num_tokens + step)
    return chosen, torch.stack(logprobs)
