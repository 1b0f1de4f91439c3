"""Laws of the plan: it covers the prompt once, and its cuts and digests follow from the prompt."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.config import MODES, ReuseConfig, SeamRule
from hypic_sdk.engine.plan import Gap, LiveRun, PromptLayout, Snapshot, layout_prompt
from hypic_sdk.prompt.segment import (
    Border,
    BorderKind,
    PromptPart,
    Role,
    SegmentedPrompt,
    token_bytes,
)
from tests.engine.prompts import inner, prompt_of, prompts, tokens

CHUNK = 64

seams = st.builds(SeamRule, st.integers(0, 9), st.integers(0, 9))


def layout(
    prompt: SegmentedPrompt, seam: SeamRule = SeamRule(4, 2), conv_width: int = 4
) -> PromptLayout:
    reuse = ReuseConfig(seam=seam, min_segment_tokens=1)
    return layout_prompt(prompt, reuse, conv_width=conv_width, namespace="n", chunk_tokens=CHUNK)


def spans(units) -> list[tuple[int, int]]:
    return [(u.start, u.stop) for u in units if not isinstance(u, Snapshot)]


@given(prompt=prompts(), seam=seams, data=st.data())
def test_runs_and_gaps_cover_what_the_chain_does_not_exactly_once(prompt, seam, data):
    items = layout(prompt, seam)
    chain = data.draw(st.sampled_from([0, *items.chain_positions()]))
    plan = items.plan(chain)
    covered = spans(plan.units)
    assert covered[0][0] == chain
    assert covered[-1][1] == prompt.num_tokens
    assert all(left[1] == right[0] for left, right in pairwise(covered))
    assert all(start < stop for start, stop in covered)
    assert isinstance(plan.units[-1], LiveRun)
    gap_tokens = sum(gap.stop - gap.start for gap in plan.gaps)
    assert chain + gap_tokens + plan.live_tokens == prompt.num_tokens


@given(prompt=prompts(), seam=seams)
def test_a_run_never_crosses_a_border_and_fits_a_grid_chunk(prompt, seam):
    borders = {*prompt.starts, *(border.position for border in prompt.borders)}
    for unit in layout(prompt, seam).plan().units:
        if isinstance(unit, LiveRun):
            assert unit.stop - unit.start <= CHUNK
            assert not any(unit.start < border < unit.stop for border in borders)


@given(prompt=prompts(), seam=seams)
def test_gaps_are_interiors_of_kept_segments(prompt, seam):
    reuse = ReuseConfig(seam=seam, min_segment_tokens=1)
    kept = [
        (start, part)
        for start, part in zip(prompt.starts, prompt.parts, strict=True)
        if part.role is Role.INNER and reuse.keeps(len(part.token_ids), 4)
    ]
    gaps = layout(prompt, seam).gaps
    assert [gap.segment_start for gap in gaps] == [start for start, _ in kept]
    for gap, (start, part) in zip(gaps, kept, strict=True):
        widths = reuse.seam_widths(len(part.token_ids), 4)
        assert widths.head_tokens >= 3  # the conv's history comes from the segment's own tokens
        assert (gap.start, gap.stop) == (
            start + widths.head_tokens,
            start + len(part.token_ids) - widths.tail_tokens,
        )


@given(prompt=prompts(), seam=seams, data=st.data())
def test_cuts_do_not_depend_on_a_chain(prompt, seam, data):
    items = layout(prompt, seam)
    chain = data.draw(st.sampled_from([0, *items.chain_positions()]))
    cold = [(max(a, chain), b) for a, b in spans(items.plan().units) if b > chain]
    assert spans(items.plan(chain).units) == cold


@given(prompt=prompts(), seam=seams, more=st.integers(1, 150), data=st.data())
def test_cuts_before_a_border_do_not_depend_on_what_follows(prompt, seam, more, data):
    """So a chain kept at a border has the bits that any prompt with the same beginning needs."""
    if not prompt.borders:
        return
    border = data.draw(st.sampled_from(prompt.borders)).position
    last = prompt.parts[-1]
    longer = SegmentedPrompt(
        (*prompt.parts[:-1], PromptPart(Role.TRAILING, (*last.token_ids, *tokens(8, more)))),
        (*prompt.borders, Border(prompt.num_tokens, BorderKind.PROMPT)),
    )
    before = [cut for cut in layout(prompt, seam).cuts if cut <= border]
    assert before == [cut for cut in layout(longer, seam).cuts if cut <= border]
    assert border in before


@given(prompt=prompts(), seam=seams)
def test_chain_positions_are_all_that_lie_outside_interiors(prompt, seam):
    items = layout(prompt, seam)
    hidden = {p for gap in items.gaps for p in range(gap.start + 1, gap.stop)}
    want = [p for p in range(1, prompt.num_tokens) if p not in hidden]
    assert items.chain_positions() == want
    assert items.chain_positions(range(-3, prompt.num_tokens + 9)) == want


@given(prompt=prompts(), seam=seams, data=st.data())
@settings(max_examples=60)
def test_a_digest_is_that_of_the_prompt_cut_there(prompt, seam, data):
    """Whatever lies behind a position, and however live tokens before it are cut into parts."""
    items = layout(prompt, seam)
    positions = items.chain_positions()
    if not positions:
        return
    position = data.draw(st.sampled_from(positions))
    inside = any(
        gap.segment_start < position < gap.segment_start + gap.num_tokens for gap in items.gaps
    )
    digest = items.digests(positions)[position]
    assert items.digests([position]) == {position: digest}
    if inside:  # a prompt can't be cut inside a segment and keep its interior
        return
    parts, left = [], position
    for part in prompt.parts:
        ids = part.token_ids[: max(0, left)]
        left -= len(part.token_ids)
        if ids and part.role is Role.INNER and len(ids) == len(part.token_ids):
            parts.append(part)
        else:  # glue token by token
            parts += [PromptPart(Role.GLUE, (token,)) for token in ids]
    short = SegmentedPrompt((*parts, PromptPart(Role.TRAILING, (1,))))
    assert layout(short, seam).digests([position])[position] == digest


def test_the_digest_tells_live_from_interior_and_seam_from_seam():
    document = tokens(1, 40)
    as_segment = prompt_of((5, 6), inner(document), (7,))
    as_glue = prompt_of((5, 6), document, (7,))
    position = 42
    digests = {
        layout(as_segment, seam).digests([position])[position]
        for seam in (SeamRule(4, 0), SeamRule(5, 0), SeamRule(4, 1))
    } | {layout(as_glue).digests([position])[position]}
    assert len(digests) == 4


def test_end_digest_goes_on_with_a_reply():
    turn_1 = prompt_of((5, 6), inner(tokens(1, 40)), (7, 8))
    turn_2 = prompt_of((5, 6), inner(tokens(1, 40)), (7, 8, 9, 10, 11))
    rolling = layout(turn_1).end_digest.copy()
    rolling.feed_live(token_bytes((9, 10)))
    assert layout(turn_2).digests([46])[46] == rolling.digest()


def test_exactness_and_keys_follow_the_position():
    first, second = inner(tokens(1, 40)), inner(tokens(2, 40))
    items = layout(prompt_of(first, second, (7, 8)))
    assert items.exact_until(40)
    assert not items.exact_until(80)
    keys = [gap.key for gap in items.gaps]
    assert items.keys_until(0) == frozenset()
    assert items.keys_until(40) == frozenset(keys[:1])
    assert items.keys_until(81) == frozenset(keys)


def test_snapshots_stand_at_their_cut():
    prompt = prompt_of(
        (5, 6),
        inner(tokens(1, 40)),
        (7, 8),
        borders=[(2, BorderKind.LEADING), (43, BorderKind.PROMPT)],
    )
    shots = {p: Snapshot(p, BorderKind.MESSAGE, b"") for p in (2, 43)}
    units = layout(prompt).plan(0, shots).units
    assert [type(u).__name__ for u in units] == [
        "LiveRun",
        "Snapshot",
        "LiveRun",
        "Gap",
        "LiveRun",
        "LiveRun",
        "Snapshot",
        "LiveRun",
    ]
    assert isinstance(units[3], Gap)
    assert layout(prompt).plan(2, {43: shots[43]}).num_snapshots == 1


def test_modes_without_segments_have_no_gaps():
    prompt = prompt_of((5, 6), inner(tokens(1, 80)), (7, 8))
    for name, mode in MODES.items():
        items = layout_prompt(
            prompt, ReuseConfig(mode=mode), conv_width=4, namespace=name, chunk_tokens=CHUNK
        )
        assert bool(items.gaps) == mode.segments
        assert items.gaps == () or items.gaps[0].seam.head_tokens == (8 if mode.seam else 0)


@given(prompt=prompts(), span=st.tuples(st.integers(0, 200), st.integers(0, 200)))
def test_packed_tokens_are_the_token_list(prompt, span):
    start, stop = sorted(min(one, prompt.num_tokens) for one in span)
    assert prompt.packed == token_bytes(prompt.token_ids)
    assert prompt.span(start, stop) == token_bytes(prompt.token_ids[start:stop])
    assert prompt.ids_between(start, stop) == prompt.token_ids[start:stop]
