"""Live rows in the forward that completes the entries before them: the same bits, a step less."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypic_sdk.config import SeamWidths
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.plan import Gap, LiveRun
from hypic_sdk.engine.run_table import ColdChunk, LiveStretch, TableBuilder
from hypic_sdk.engine.splice import SpliceGap
from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.prompt.segment import BorderKind, PromptPart, SegmentedPrompt, SegmentKey
from hypic_sdk.store.entries import SegmentEntry
from hypic_sdk.transport.messages import EngineReport, SamplingParams, WarmRequest
from tests.closeness import assert_close
from tests.engine.harness import (
    ALL_FAMILIES,
    FEW_FAMILIES,
    answer,
    check_ended,
    drain,
    engine_of,
    events_of,
    logprobs,
    report_of,
    request_of,
    spoil,
    token_ids,
    warm,
)
from tests.engine.prompts import VOCAB, inner, prompt_of, prompts, tokens, with_leading_border
from tests.engine.replayed import kernels_in_interpreter
from tests.engine.test_bits import crowd, two_documents
from tests.engine.test_scheduler import record

FEW = settings(
    max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
WIDE = 512  # tokens of a step: all cold segments of `two_documents` and its live rows


def joined_engine(family: str = "gated_delta_rule", **fields: object) -> Engine:
    """In fp32, as the laws that hold bit for bit are stated."""
    fields = {"dtype": torch.float32, "pair": "float16", "step_tokens": WIDE, **fields}
    return engine_of(family, **{"joined": True, **fields})


def documents(*lengths: int) -> list[PromptPart]:
    return [inner(tokens(seed + 1, length)) for seed, length in enumerate(lengths)]


def spread(*parts: PromptPart, seed: int = 70) -> SegmentedPrompt:
    """A leading part with its border, glue between the documents, a question."""
    glued = [piece for part in parts for piece in (part, tokens(60, 2))]
    return prompt_of(tokens(90, 7), *glued, tokens(seed, 9), borders=[(7, BorderKind.LEADING)])


def facts_of(report: EngineReport) -> list[object]:
    """All that does not depend on a clock."""
    counts = [
        *(report.prompt_tokens, report.chain_tokens, report.segment_tokens, report.live_tokens),
        *(report.seam_tokens, report.cold_tokens, report.cached_tokens, report.exact),
    ]
    segments = [
        (s.segment_id, s.status, s.miss_reason, s.start, s.reused_tokens, s.seam_tokens)
        for s in report.segments
    ]
    return [*counts, segments]


# -- how many forwards


@pytest.mark.parametrize("lengths", [(40,), (40, 50, 60), (64, 64)])
def test_a_cold_request_has_one_forward_less(lengths):
    counts = []
    for joined in (False, True):
        engine = joined_engine(joined=joined)
        batches = record(engine)
        answer(engine, spread(*documents(*lengths)), max_tokens=1)
        counts.append(len(batches))
    assert counts == [2, 1]


def test_live_rows_wait_for_the_last_chunk_of_a_segment():
    found = {}
    for joined in (False, True):
        engine = joined_engine(joined=joined)
        batches = record(engine)
        answer(engine, spread(*documents(150, 40)), max_tokens=1)
        found[joined] = [
            (len(batch.colds), [step.position for step in batch.assemblies]) for batch in batches
        ]
    num_tokens = spread(*documents(150, 40)).num_tokens
    assert found[True] == [(2, [11]), (1, []), (1, [num_tokens])]
    assert found[False] == [*found[True][:2], (1, []), (0, [num_tokens])]


def test_live_rows_that_do_not_fit_the_step_go_in_the_next():
    engine = joined_engine(step_tokens=64)
    batches = record(engine)
    answer(engine, prompt_of(*documents(50), tokens(5, 30)), max_tokens=1)
    assert [batch.num_rows for batch in batches] == [54, 30]
    assert all(batch.num_rows <= 64 for batch in batches)


def test_a_request_goes_on_over_the_entries_that_are_complete():
    """The runs before a segment that is not, in the step of those that are."""
    engine = joined_engine()
    batches = record(engine)
    prompt = spread(*documents(40, 50, 150))
    events = answer(engine, prompt, max_tokens=1)
    positions = [[step.position for step in batch.assemblies] for batch in batches]
    assert positions == [[prompt.starts[5] + 4], [], [prompt.num_tokens]]
    want = answer(joined_engine(joined=False), prompt, max_tokens=1)
    assert torch.equal(logprobs(events), logprobs(want))


def test_all_who_wait_for_one_segment_go_on_with_it():
    engine = joined_engine()
    batches = record(engine)
    (shared,) = documents(50)
    messages = [request_of(spread(shared, seed=seed), max_tokens=1) for seed in (70, 71, 72)]
    for message in messages:
        engine.submit(message)
    events = drain(engine)
    assert [(len(b.assemblies), len(b.colds), b.num_rows) for b in batches] == [
        (3, 1, 50 + 3 * (7 + 4 + 2 + 9))
    ]
    for message, seed in zip(messages, (70, 71, 72), strict=True):
        own = events_of(events, message.request_id)
        want = answer(joined_engine(joined=False), spread(shared, seed=seed), max_tokens=1)
        assert torch.equal(logprobs(own), logprobs(want))
        assert report_of(own).cold_ms > 0
        assert report_of(own).ttft_ms >= report_of(own).queue_ms


# -- the same bits


@pytest.mark.parametrize("pair", ["float16", "int8"])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_law_4_and_5_hold_bit_for_bit(family, pair):
    """Joined, apart, hit, mixed, chained, under budgets and in a crowd; and the entries' bytes."""
    prompt, parts = two_documents()
    apart = joined_engine(family, pair=pair, joined=False)
    cold = answer(apart, prompt)
    want, digests = logprobs(cold), apart.entry_digests(parts)
    assert None not in digests
    for step_tokens in (64, 256, WIDE):
        engine = joined_engine(family, pair=pair, step_tokens=step_tokens)
        joined = answer(engine, prompt)
        assert facts_of(report_of(joined)) == facts_of(report_of(cold))
        assert torch.equal(logprobs(joined), want)
        chained = answer(engine, prompt)
        assert report_of(chained).chain_tokens == 420
        assert torch.equal(logprobs(chained), want)
        assert engine.entry_digests(parts) == digests
    hit, mixed = joined_engine(family, pair=pair), joined_engine(family, pair=pair)
    warm(hit, *reversed(parts))
    warm(mixed, parts[1])
    crowded = joined_engine(family, pair=pair)
    found = [answer(hit, prompt), answer(mixed, prompt), crowd(crowded, prompt)]
    for events, engine in zip(found, (hit, mixed, crowded), strict=True):
        assert torch.equal(logprobs(events), want)
        assert token_ids(events) == token_ids(cold)
        assert engine.entry_digests(parts) == digests


@pytest.mark.parametrize("family", FEW_FAMILIES)
@FEW
@given(prompt=prompts(), data=st.data())
def test_law_4_on_random_prompts(family, prompt, data):
    """Any subset warmed, any step budget."""
    prompt = with_leading_border(prompt)
    want = logprobs(answer(joined_engine(family, joined=False), prompt))
    engine = joined_engine(family, step_tokens=data.draw(st.sampled_from([64, 128, 512])))
    parts = [part for part in prompt.parts if part.segment_id is not None]
    if parts:
        warm(engine, *data.draw(st.lists(st.sampled_from(parts), max_size=2)))
    for _ in range(2):
        assert torch.equal(logprobs(answer(engine, prompt)), want)


@pytest.mark.parametrize("mode", ["transition_rope", "transition", "addition"])
@pytest.mark.parametrize("family", FEW_FAMILIES)
def test_other_modes(family, mode):
    prompt = spread(*documents(40, 70))
    answers = [
        logprobs(answer(joined_engine(family, mode=mode, joined=joined), prompt))
        for joined in (False, True)
    ]
    assert torch.equal(*answers)


@pytest.mark.parametrize(
    "shape",
    [
        {"layers": "LL"},
        {"layers": "LAL", "rotary": False},
        {"layers": "ALAL", "dtype": torch.bfloat16},
    ],
    ids=["no_attention", "no_rotary", "bf16"],
)
def test_other_shapes(shape):
    model = build_tiny("mamba2", seed=1, **shape)
    prompt, _ = two_documents()
    answers = [
        logprobs(answer(joined_engine(model=model, joined=joined), prompt))
        for joined in (False, True)
    ]
    assert torch.equal(*answers)


@pytest.mark.parametrize("family", FEW_FAMILIES)
def test_segments_behind_an_anchor(family):
    prompt = spread(*documents(50, 90, 40))
    engines = [joined_engine(family, anchored=True, joined=joined) for joined in (False, True)]
    batches = record(engines[1])
    cold, joined = (answer(engine, prompt, max_tokens=2) for engine in engines)
    assert any(batch.colds and batch.sampling for batch in batches)
    assert torch.equal(logprobs(joined), logprobs(cold))
    assert torch.equal(logprobs(answer(engines[1], prompt, max_tokens=2)), logprobs(cold))


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of the interpreter's numpy
@pytest.mark.parametrize(
    ("family", "dtype", "pair"),
    [
        ("gated_delta_rule", torch.float16, "int8"),
        ("lightning", torch.float32, "float16"),
        pytest.param("gated_delta_rule", torch.float32, "float16", marks=pytest.mark.slow),
        pytest.param("mamba2", torch.float32, "float16", marks=pytest.mark.slow),
        pytest.param("mamba2", torch.float32, "int8", marks=pytest.mark.slow),
        pytest.param("gla", torch.float32, "float16", marks=pytest.mark.slow),
        pytest.param("gla", torch.float32, "int8", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kernels_give_the_bits_of_a_forward_of_its_own(family, dtype, pair):
    """Of a hit, too; and what the definitions give on a CPU, within what the kernels may differ."""
    model = build_tiny(family, seed=1, layers="LAL", dtype=dtype)
    prompt = spread(*documents(40, 25))
    fields = {"model": model, "dtype": dtype, "pair": pair}
    plain = logprobs(answer(joined_engine(family, **fields), prompt, max_tokens=1))
    with kernels_in_interpreter():
        engine = joined_engine(family, **fields)
        batches = record(engine)
        joined = logprobs(answer(engine, prompt, max_tokens=1))
        assert len(batches) == 1
        hit = logprobs(answer(engine, prompt, max_tokens=1))
        apart = logprobs(
            answer(joined_engine(family, **fields, joined=False), prompt, max_tokens=1)
        )
    assert torch.equal(joined, hit)
    assert torch.equal(joined, apart)
    assert_close("logprobs", joined, plain, rel_rms=1e-4 if dtype == torch.float32 else 1e-2)


# -- what is kept and told


def test_several_replies_sessions_and_prompts_without_an_answer():
    prompt, _ = two_documents()
    kept = {}
    for joined in (False, True):
        engine = joined_engine(joined=joined)
        several = request_of(
            prompt,
            num_replies=3,
            sampling=SamplingParams(max_tokens=3, temperature=1.0, seed=5, logprobs=VOCAB),
        )
        engine.submit(several)
        events = drain(engine)
        found = [e.token_ids for e in sorted(events, key=lambda event: event.reply_index)]
        none = answer(joined_engine(joined=joined), prompt, max_tokens=0, session_id="s")
        facts = facts_of(report_of(none))
        session = joined_engine(joined=joined)
        first = answer(session, prompt, session_id="s")
        positions = session._store.chain_positions("")
        kept[joined] = [found, token_ids(none), facts, token_ids(first), positions]
    assert kept[True] == kept[False]
    assert kept[True][4], "chains are kept in the forward that completes what they contain"


def test_what_other_workers_send_and_what_is_only_warmed_is_not_waited_for_here():
    """A warm request has no rows but its segment's."""
    engine = joined_engine()
    batches = record(engine)
    engine.warm(WarmRequest("w", tuple(documents(40, 50))))
    message = request_of(prompt_of(tokens(3, 9)), max_tokens=1)
    engine.submit(message)
    events = drain(engine)
    check_ended(events_of(events, message.request_id))
    assert [len(step.stretch.token_ids) for batch in batches for step in batch.assemblies] == [9]


# -- ends of all kinds


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_segment_that_is_not_finite_ends_its_requests_without_a_trace(joined, which):
    """Also where others of the same request end in the same step; who does not wait goes on."""
    engine = joined_engine(joined=joined)
    parts = documents(40, 50, 60)
    spoil(engine, parts[which])
    bad = request_of(spread(*parts), session_id="s")
    good = request_of(spread(*(part for part in parts if part is not parts[which])))
    for message in (bad, good):
        engine.submit(message)
    events = drain(engine)
    own = events_of(events, bad.request_id)
    assert [event.token_ids for event in own] == [()]
    assert own[0].error["code"] == "numerics_error"
    assert own[0].report is None
    check_ended(events_of(events, good.request_id))
    assert engine.probe(parts) == [index != which for index in range(3)]
    # of the leading part, which both have
    assert engine._store.chain_positions("") == [7]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("which", [0, 1])
def test_segments_that_nobody_wants_any_more_are_given_up_in_the_step_they_end(joined, which):
    """Their only request failed in that step with another one of its segments."""
    engine = joined_engine(joined=joined)
    parts = documents(40, 50)
    spoil(engine, parts[which])
    message = request_of(spread(*parts))
    engine.submit(message)
    (event,) = drain(engine)
    assert event.error["code"] == "numerics_error"
    assert not engine.probe(parts)[which]


def test_a_poisonous_token_keeps_no_snapshot_behind_it():
    """A NaN that the model makes, so the live rows behind it are none either."""
    model = build_tiny("gated_delta_rule", seed=1, dtype=torch.float32, layers="LAL")
    with torch.no_grad():
        model.embedding.weight[VOCAB - 1] = float("nan")
    engine = joined_engine(model=model)
    clean = [t for t in tokens(1, 60) if t != VOCAB - 1]
    poisonous, good = inner((*clean[:40], VOCAB - 1)), inner(clean[:30])
    borders = [(3, BorderKind.LEADING), (52, BorderKind.PROMPT)]
    bad = request_of(
        prompt_of((5, 6, 7), poisonous, tuple(clean[:20]), borders=borders), session_id="s"
    )
    other = request_of(prompt_of((5, 6, 7), good, tuple(clean[:20])))
    for message in (bad, other):
        engine.submit(message)
    events = drain(engine)
    assert events_of(events, bad.request_id)[-1].error["code"] == "numerics_error"
    check_ended(events_of(events, other.request_id))
    assert set(engine._store.chain_positions("")) <= {3}
    assert engine.probe([poisonous, good]) == [False, True]


def test_a_forward_that_fails_leaves_no_entry_and_no_row(monkeypatch):
    engine = joined_engine()
    parts = documents(40, 50)
    messages = [request_of(spread(*parts, seed=seed), session_id="s") for seed in (70, 71)]
    for message in messages:
        engine.submit(message)

    def fall_over(*_):
        raise ValueError("the model fell over")

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "_prompt_logprobs", fall_over)
        events = engine.step()
    events += drain(engine)
    assert [event.error["code"] for event in events] == ["worker_error"] * 2
    assert engine.probe(parts) == [False, False]
    assert engine._store.chain_positions("") == []
    want = answer(joined_engine(joined=False), spread(*parts))
    assert torch.equal(logprobs(answer(engine, spread(*parts))), logprobs(want))


def test_random_traffic_gets_the_same_answers():
    """Requests that share segments come, are cancelled and go on, over chains and memory's end."""
    told = []
    for joined in (False, True):
        draw = random.Random(7)
        engine = joined_engine(joined=joined, step_tokens=192, budget_bytes=4 << 20)
        parts = documents(20, 40, 60, 64, 100, 150)
        messages, cancelled, events = [], set(), []
        for number in range(80):
            picked = [draw.choice(parts) for _ in range(draw.randrange(0, 4))]
            prompt = spread(*picked, seed=draw.randrange(70, 75))
            session = draw.choice([None, "s"])
            message = request_of(prompt, max_tokens=draw.randrange(0, 4), session_id=session)
            messages.append(message)
            engine.submit(message)
            if draw.random() < 0.15:
                cancelled.add(len(messages) - 1)
                events += engine.step()
                engine.cancel(message.request_id)
            if number % 20 == 0:
                engine.warm(WarmRequest(f"w{number}", tuple(draw.sample(parts, 2))))
            if number % 9 == 0:
                engine.delete([draw.choice(parts)])
            for _ in range(draw.randrange(0, 3)):
                events += engine.step()
            engine.check()
        events += drain(engine)
        own = [events_of(events, message.request_id) for message in messages]
        told.append([logprobs(e) for i, e in enumerate(own) if i not in cancelled])
    assert len(told[0]) > 50
    for want, got in zip(*told, strict=True):
        assert torch.equal(want, got)


# -- the table


def test_gaps_over_what_a_forward_writes_are_placed_apart():
    cpu = torch.device("cpu")
    keys = [SegmentKey(bytes([letter]) * 32) for letter in (1, 2)]
    entries = [
        SegmentEntry(key, 20, SeamWidths(4, 2), 7 + i, 9 + i, torch.arange(14) + 500 + 50 * i, 0)
        for i, key in enumerate(keys)
    ]
    gaps = [Gap(key, 0, 20 * i, 20, SeamWidths(4, 2)) for i, key in enumerate(keys)]
    kv = KvTable(torch.arange(60), cpu)
    steps = [
        *(LiveRun(0, 4), SpliceGap(gaps[0], entries[0]), LiveRun(18, 24)),
        *(SpliceGap(gaps[1], entries[1]), LiveRun(38, 41)),
    ]
    build = TableBuilder(has_attention=True, rotate_gaps=True, device=cpu)
    build.add_live(LiveStretch([5] * 13, steps, NO_SLOT, [2], kv, wants_logits=True))
    build.add_cold(ColdChunk([6] * 20, 0, entries[1], None))
    table = build.build()
    for placement, gap, entry in zip((table.placement, table.joined), gaps, entries, strict=True):
        assert placement is not None
        assert placement.source_slots.tolist() == entry.kv_slots.tolist()
        assert placement.target_slots.tolist() == list(range(gap.start, gap.stop))
        assert placement.positions.tolist() == list(range(gap.start, gap.stop))
