"""Forwards that most traffic asks for: their graphs are captured before the first request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from hypic_sdk.config import EngineConfig, SeamWidths
from hypic_sdk.engine.graph_tables import ROWS, decode_contexts
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.plan import LiveRun
from hypic_sdk.engine.run_table import LiveStretch, TableBuilder
from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.kernels.items import NO_SLOT

QUESTION_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Likely:
    """What is expected of the requests to come."""

    max_replies: int  # that decode side by side
    num_segments: int  # of a prompt
    segment_tokens: int
    seam: SeamWidths  # of a segment of that length
    max_context_tokens: int

    @classmethod
    def of(cls, settings: EngineSettings, config: EngineConfig) -> Likely:
        """What an engine's settings say of them."""
        segment_tokens = config.store.expected_segment_tokens
        return cls(
            max_replies=config.scheduler.max_requests,
            num_segments=config.store.segments_per_request,
            segment_tokens=segment_tokens,
            seam=settings.reuse.seam_widths(segment_tokens, settings.conv_width),
            max_context_tokens=settings.max_context_tokens,
        )


def likely_forwards(
    likely: Likely, new_builder: Callable[[], TableBuilder], device: torch.device
) -> Iterator[TableBuilder]:
    """Batches whose sizes are those to be expected, the likeliest first.

    Decode rows of one reply; a request that finds all its segments cached; decode rows of more and
    more replies, up to the most that run at once, over short and over long contexts.  Only sizes
    are looked at: the slots in them are anybody's, and such a batch is never run.
    """
    contexts = [min(count, likely.max_context_tokens) for count in decode_contexts()]
    yield _decodes(1, contexts[0], new_builder(), device)
    yield _all_hits(likely, new_builder(), device)
    for fewer, size in pairwise((0, *ROWS)):
        if fewer < likely.max_replies:
            for context in contexts:
                yield _decodes(min(size, likely.max_replies), context, new_builder(), device)


def _decodes(
    num_rows: int, context: int, builder: TableBuilder, device: torch.device
) -> TableBuilder:
    kv = KvTable(torch.arange(context), device)
    for row in range(num_rows):
        builder.add_decode(0, context - 1, row, kv)
    return builder


def _all_hits(likely: Likely, builder: TableBuilder, device: torch.device) -> TableBuilder:
    """Seams of some segments, and a question.

    Of a bucket's sizes gaps only make that a sequence goes in tiles, which the question does here.
    """
    room = (likely.max_context_tokens - QUESTION_TOKENS) // likely.num_segments
    head, tail = likely.seam.head_tokens, likely.seam.tail_tokens
    length = min(likely.segment_tokens, room)
    if length <= head + tail:  # nothing of a segment is cached
        length = 0
    runs: list[LiveRun] = []
    for start in range(0, likely.num_segments * length, max(1, length)):
        runs += (LiveRun(start, start + head), LiveRun(start + length - tail, start + length))
    last = likely.num_segments * length
    question = LiveRun(last, min(last + QUESTION_TOKENS, likely.max_context_tokens))
    steps = [run for run in (*runs, question) if run.stop > run.start]
    stretch = LiveStretch(
        token_ids=[0] * sum(run.stop - run.start for run in steps),
        steps=steps,
        load_slot=NO_SLOT,
        save_slots=[0],
        kv=KvTable(torch.arange(question.stop), device),
        wants_logits=True,
    )
    builder.add_live(stretch)
    return builder
