"""Segments computed behind the leading part: pure in anchor and tokens, exact right behind it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.config import ReuseConfig, SeamRule
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.plan import layout_prompt
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt
from hypic_sdk.transport.messages import SegmentStatus
from tests.closeness import assert_close
from tests.engine.harness import (
    ALL_FAMILIES,
    FEW_FAMILIES,
    answer,
    drain,
    engine_of,
    logprobs,
    report_of,
    request_of,
    token_ids,
    warm,
)
from tests.engine.prompts import inner, prompt_of, tokens

ANCHOR = tokens(90, 37)
DOCUMENTS = tuple(inner(tokens(seed, length)) for seed, length in ((1, 50), (2, 90), (3, 130)))


def behind(part: PromptPart, anchor: tuple[int, ...] = ANCHOR) -> PromptPart:
    return replace(part, anchor=anchor)


def prompt_over(*documents: PromptPart, anchor: tuple[int, ...] = ANCHOR) -> SegmentedPrompt:
    glued = itertools.chain.from_iterable((part, tokens(60, 2)) for part in documents)
    return prompt_of(anchor, *glued, tokens(5, 9))


def anchored(family: str = "gated_delta_rule", **settings: object) -> Engine:
    return engine_of(family, anchored=True, **settings)


@pytest.mark.parametrize("family", FEW_FAMILIES)
def test_an_entry_is_that_of_anchor_and_segment_as_one_with_a_wider_head(family):
    for document in DOCUMENTS:
        engine = anchored(family)
        warm(engine, behind(document))
        plain = engine_of(family, seam=SeamRule(len(ANCHOR) + 4, 0))
        whole = inner((*ANCHOR, *document.token_ids))
        warm(plain, whole)
        digest = engine.entry_digests([behind(document)])
        assert digest == plain.entry_digests([whole])
        assert digest != [None]


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_an_entry_has_the_same_bytes_however_it_was_made(family):
    parts = [behind(document) for document in DOCUMENTS]
    seen = []
    for batches in ([parts], [parts[::-1]], [[part] for part in parts]):
        engine = anchored(family)
        for batch in batches:
            warm(engine, *batch)
        seen.append(engine.entry_digests(parts))
    engine = anchored(family)
    for order in ((2, 0), (1, 2)):
        answer(engine, prompt_over(*(DOCUMENTS[i] for i in order)))
    seen.append(engine.entry_digests(parts))
    assert None not in seen[0]
    assert seen.count(seen[0]) == 4


@pytest.mark.parametrize("family", FEW_FAMILIES)
def test_warm_is_cold_is_mixed_bit_for_bit(family):
    prompt = prompt_over(*DOCUMENTS)
    given = []
    for warmed in ((), DOCUMENTS, DOCUMENTS[1:2]):
        engine = anchored(family)
        if warmed:
            warm(engine, *map(behind, warmed))
        events = answer(engine, prompt)
        given.append((token_ids(events), logprobs(events)))
        statuses = [one.status for one in report_of(events).segments]
        assert statuses.count(SegmentStatus.HIT) == len(warmed)
    for ids, rows in given[1:]:
        assert ids == given[0][0]
        assert torch.equal(rows, given[0][1])


@given(
    family=st.sampled_from(ALL_FAMILIES),
    length=st.integers(1, 150),
    anchor_tokens=st.integers(1, 80),
    seam=st.builds(SeamRule, st.integers(0, 9), st.integers(0, 9)),
)
@settings(max_examples=40)
def test_right_behind_its_anchor_a_segment_equals_full_recompute(
    family, length, anchor_tokens, seam
):
    prompt = prompt_of(tokens(7, anchor_tokens), inner(tokens(8, length)), tokens(9, 6))
    events = answer(anchored(family, seam=seam), prompt)
    assert report_of(events).exact
    full = answer(anchored(family, seam=seam), prompt, reuse=False)
    assert_close("probabilities", logprobs(events).exp(), logprobs(full).exp(), rel_rms=1e-10)


def test_a_second_segment_is_composed_and_says_so():
    assert not report_of(answer(anchored(), prompt_over(*DOCUMENTS[:2]))).exact


def key_behind(anchor: tuple[int, ...], document: PromptPart, *before: PromptPart) -> bytes:
    reuse = ReuseConfig(seam=SeamRule(4), min_segment_tokens=1, anchored=True)
    prompt = prompt_over(*before, document, anchor=anchor)
    layout = layout_prompt(prompt, reuse, conv_width=4, namespace="n", chunk_tokens=64)
    return layout.gaps[-1].key


def test_a_key_is_of_the_leading_part_and_the_segment_and_nothing_else():
    anchors = (ANCHOR, tokens(91, 37), ANCHOR[:-1], ANCHOR[1:], ())
    keys = {(a, d): key_behind(a, d) for a in anchors for d in DOCUMENTS}
    assert len(set(keys.values())) == len(keys)
    for (anchor, document), key in keys.items():
        assert key_behind(anchor, document, *DOCUMENTS[:2]) == key


def test_the_anchor_is_in_the_key_and_places_are_not():
    engine = anchored()
    cold = report_of(answer(engine, prompt_over(*DOCUMENTS)))
    assert cold.cold_tokens == sum(len(ANCHOR) + len(part.token_ids) for part in DOCUMENTS)
    moved = report_of(answer(engine, prompt_over(*DOCUMENTS[::-1])))
    assert [one.status for one in moved.segments] == [SegmentStatus.HIT] * 3
    for other in (tokens(91, 37), ANCHOR[:-1], ()):
        report = report_of(answer(engine, prompt_over(*DOCUMENTS, anchor=other)))
        assert [one.status for one in report.segments] == [SegmentStatus.COLD] * 3


def test_without_a_leading_part_entries_are_the_usual_ones():
    engine, plain = anchored(), engine_of()
    for one in (engine, plain):
        answer(one, prompt_over(*DOCUMENTS, anchor=()))
    assert engine.entry_digests(DOCUMENTS) == plain.entry_digests(DOCUMENTS) != [None] * 3


def test_an_engine_that_anchors_nothing_ignores_anchors():
    engine, parts = engine_of(), [behind(part) for part in DOCUMENTS]
    warm(engine, *parts)
    assert engine.entry_digests(DOCUMENTS) == engine.entry_digests(parts) != [None] * 3
    report = report_of(answer(engine, prompt_over(*DOCUMENTS)))
    assert [one.status for one in report.segments] == [SegmentStatus.HIT] * 3


def test_two_requests_that_begin_alike_compute_an_entry_once():
    engine = anchored()
    one, two = (request_of(prompt_over(*DOCUMENTS)) for _ in range(2))
    engine.submit(one)
    engine.submit(two)
    drain(engine)
    assert engine.usage().num_segments == 3


def test_a_deletion_reaches_every_anchor_and_chain():
    engine = anchored()
    for anchor in (ANCHOR, tokens(91, 20), ()):
        answer(engine, prompt_over(*DOCUMENTS[:2], anchor=anchor), namespace="mine")
    answer(engine, prompt_over(DOCUMENTS[0]), namespace="yours")
    engine.delete(DOCUMENTS[:1], "mine")
    assert engine.holdings("mine").num_segments == 0
    assert engine.holdings("mine").num_chains == 0
    assert engine.holdings("yours").num_segments == 1


def test_the_leading_part_alone_is_the_anchor():
    engine = anchored()
    glue_first = SegmentedPrompt(
        (
            DOCUMENTS[0],
            PromptPart(Role.GLUE, tokens(4, 5)),
            DOCUMENTS[1],
            PromptPart(Role.TRAILING, tokens(5, 9)),
        )
    )
    answer(engine, glue_first)
    assert None not in engine.entry_digests(DOCUMENTS[:2])
