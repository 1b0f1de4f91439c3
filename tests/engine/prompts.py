"""Random segmented prompts for engine tests."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from hypic_sdk.prompt.segment import (
    Border,
    BorderKind,
    PromptPart,
    Role,
    SegmentedPrompt,
    segment_id,
)

VOCAB = 97


def inner(token_ids: Sequence[int]) -> PromptPart:
    """A segment of these tokens (its id stands for a text that has them)."""
    ids = tuple(token_ids)
    return PromptPart(Role.INNER, ids, segment_id(repr(ids)))


def tokens(seed: int, count: int) -> tuple[int, ...]:
    """The same random ids for the same seed; 0 to 2 are left for end tokens."""
    draw = random.Random(seed)
    return tuple(draw.randrange(3, VOCAB) for _ in range(count))


def prompt_of(
    *pieces: PromptPart | Sequence[int], borders: Sequence[tuple[int, BorderKind]] = ()
) -> SegmentedPrompt:
    """A prompt of segments and plain token lists; the last is the trailing part."""
    first = next((i for i, piece in enumerate(pieces) if isinstance(piece, PromptPart)), 0)
    parts: list[PromptPart] = []
    for index, piece in enumerate(pieces):
        if isinstance(piece, PromptPart):
            parts.append(piece)
        elif index == len(pieces) - 1:
            parts.append(PromptPart(Role.TRAILING, tuple(piece)))
        elif piece:
            role = Role.LEADING if index < first else Role.GLUE
            parts.append(PromptPart(role, tuple(piece)))
    return SegmentedPrompt(tuple(parts), tuple(Border(p, kind) for p, kind in borders))


def with_leading_border(prompt: SegmentedPrompt) -> SegmentedPrompt:
    """The same prompt, with the border at the end of its leading part, if it has one."""
    if prompt.parts[0].role is not Role.LEADING:
        return prompt
    border = Border(len(prompt.parts[0].token_ids), BorderKind.LEADING)
    later = tuple(b for b in prompt.borders if b.position > border.position)
    return SegmentedPrompt(prompt.parts, (border, *later))


@st.composite
def prompts(draw: st.DrawFn, max_segment: int = 90) -> SegmentedPrompt:
    """Segments of any length, the same one twice at times, glue of 0 to 5 tokens, borders."""
    documents = [
        tokens(draw(st.integers(0, 9)), draw(st.integers(1, max_segment)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    pieces: list[PromptPart | Sequence[int]] = [tokens(50, draw(st.integers(0, 20)))]
    for index in draw(st.lists(st.integers(0, len(documents) - 1), max_size=5)):
        pieces += [inner(documents[index]), tokens(60, draw(st.integers(0, 5)))]
    pieces.append(tokens(draw(st.integers(70, 72)), draw(st.integers(1, 200))))
    prompt = prompt_of(*pieces)
    last_start = prompt.starts[-1]
    inside = st.integers(last_start + 1, max(last_start + 1, prompt.num_tokens - 1))
    cuts = draw(st.sets(inside, max_size=3)) if prompt.num_tokens - last_start > 1 else set()
    ends = (
        draw(st.sets(st.sampled_from(prompt.starts[1:]), max_size=2))
        if len(prompt.parts) > 1
        else set()
    )
    borders = tuple(Border(p, BorderKind.MESSAGE) for p in sorted(cuts | ends))
    return SegmentedPrompt(prompt.parts, borders)
