"""Chains: which are kept, which is found, what is shared, what is told (design 3.3)."""

from __future__ import annotations

import torch

from hypic_sdk.prompt.segment import BorderKind, PromptPart, Role, SegmentedPrompt
from hypic_sdk.transport.messages import SegmentStatus
from tests.engine.harness import (
    answer,
    check_ended,
    drain,
    engine_of,
    events_of,
    logprobs,
    report_of,
    request_of,
    token_ids,
)
from tests.engine.prompts import inner, prompt_of, tokens

LEADING, MESSAGE, PROMPT = BorderKind.LEADING, BorderKind.MESSAGE, BorderKind.PROMPT


def chat(*turns: tuple[int, ...], leading: int = 20) -> SegmentedPrompt:
    """A leading part, a document, then turns; a border after each but the generation prompt."""
    document = inner(tokens(2, 50))
    start = leading + 50
    borders, position = [(leading, LEADING)], start
    for turn in turns:
        position += len(turn)
        borders.append((position, MESSAGE))
    borders[-1] = (position, PROMPT)
    text = tuple(token for turn in turns for token in turn)
    return prompt_of(tokens(1, leading), document, (*text, 4, 4), borders=borders)


def test_the_end_of_the_leading_part_serves_every_later_prompt():
    engine = engine_of()
    first = report_of(answer(engine, chat(tokens(5, 9))))
    assert (first.chain_tokens, first.exact) == (0, False)
    other = prompt_of(tokens(1, 20), inner(tokens(3, 40)), (7,), borders=[(20, LEADING)])
    second = report_of(answer(engine, other))
    assert second.chain_tokens == 20
    assert second.cached_tokens == 20


def test_a_chain_is_there_as_soon_as_its_last_token_went_through():
    """Also while its request still waits for segments."""
    engine = engine_of(mode="transition")  # no head seam: a gap follows at once
    slow = prompt_of(tokens(1, 20), inner(tokens(9, 600)), (7,), borders=[(20, LEADING)])
    engine.submit(request_of(slow))
    for _ in range(3):
        engine.step()
    assert engine.usage().num_filling == 1
    message = request_of(prompt_of(tokens(1, 20), (8, 9), borders=[(20, LEADING)]))
    engine.submit(message)
    events = drain(engine)
    assert report_of(events_of(events, message.request_id)).chain_tokens == 20


def test_the_same_prompt_again_goes_on_from_its_last_border():
    engine = engine_of()
    prompt = chat(tokens(5, 9))
    want = logprobs(answer(engine, prompt))
    events = answer(engine, prompt)
    report = report_of(events)
    assert report.chain_tokens == 20 + 50 + 9
    assert report.live_tokens == 2
    assert report.segments[0].status is SegmentStatus.PREFIX
    assert report.segments[0].reused_tokens == 50
    assert not report.exact  # a composed chain is never told as an exact prefix
    assert torch.equal(logprobs(events), want)


def test_a_chain_of_live_tokens_only_is_exact():
    engine = engine_of()
    prompt = prompt_of(tokens(1, 50), borders=[(40, PROMPT)])
    answer(engine, prompt)
    report = report_of(answer(engine, prompt))
    assert (report.chain_tokens, report.exact) == (40, True)


def test_a_session_goes_on_behind_its_reply():
    engine = engine_of()
    turn_1 = chat(tokens(5, 9))
    reply = token_ids(answer(engine, turn_1, session_id="s", max_tokens=6))
    text = (*tokens(5, 9), 4, 4, *reply)
    turn_2 = chat(tokens(5, 9), (4, 4, *reply, *tokens(6, 7)))
    assert turn_2.token_ids[: 72 + 9] == (*turn_1.token_ids,)
    report = report_of(answer(engine, turn_2, session_id="s"))
    assert report.chain_tokens == 20 + 50 + len(text) - 1


def test_without_a_session_no_reply_is_kept():
    engine = engine_of()
    turn_1 = chat(tokens(5, 9))
    reply = token_ids(answer(engine, turn_1, max_tokens=6))
    turn_2 = chat(tokens(5, 9), (4, 4, *reply, *tokens(6, 7)))
    assert report_of(answer(engine, turn_2)).chain_tokens == 20 + 50 + 9


def test_a_reply_that_is_rendered_differently_matches_up_to_the_last_common_border():
    engine = engine_of()
    reply = token_ids(answer(engine, chat(tokens(5, 9)), session_id="s", max_tokens=6))
    shortened = (4, 4, *reply[3:], *tokens(6, 7))
    report = report_of(answer(engine, chat(tokens(5, 9), shortened), session_id="s"))
    assert report.chain_tokens == 20 + 50 + 9


def test_another_assembly_of_the_same_tokens_is_another_chain():
    engine = engine_of()
    prompt = chat(tokens(5, 9))
    answer(engine, prompt)
    as_text = SegmentedPrompt(
        (
            prompt.parts[0],
            PromptPart(Role.GLUE, prompt.parts[1].token_ids),
            prompt.parts[2],
        ),
        prompt.borders,
    )
    report = report_of(answer(engine, as_text))
    assert report.chain_tokens == 20
    assert report.exact


def test_mode_off_reads_and_writes_nothing():
    engine = engine_of()
    prompt = chat(tokens(5, 9))
    before = engine.usage()
    answer(engine, prompt, reuse=False, session_id="s")
    assert engine.usage() == before
    answer(engine, prompt, session_id="s")
    before = engine.usage()
    report = report_of(answer(engine, prompt, reuse=False, session_id="s"))
    assert (report.chain_tokens, report.segment_tokens, report.cached_tokens) == (0, 0, 0)
    assert engine.usage() == before


def test_modes_use_what_they_name():
    prompt = chat(tokens(5, 9))
    for mode, chains, segments in (
        ("full_recompute", False, False),
        ("prefix_cache", True, False),
        ("transition", True, True),
    ):
        engine = engine_of(mode=mode)
        first = report_of(answer(engine, prompt))
        second = report_of(answer(engine, prompt))
        assert (first.segment_tokens > 0) == segments, mode
        assert (second.chain_tokens > 0) == chains, mode


def test_many_requests_extend_one_chain_at_once():
    """The shared slots are read by all and written by none."""
    engine = engine_of()
    prompts = [chat(tokens(5, 9), (4, 4, *tokens(i, 12))) for i in range(6)]
    want = [logprobs(answer(engine_of(), prompt)) for prompt in prompts]
    answer(engine, chat(tokens(5, 9)))
    messages = [request_of(prompt) for prompt in prompts]
    for message in messages:
        engine.submit(message)
    events = drain(engine)
    for message, expected in zip(messages, want, strict=True):
        got = events_of(events, message.request_id)
        check_ended(got)
        assert report_of(got).chain_tokens == 79
        assert torch.equal(logprobs(got), expected)


def test_snapshots_never_stand_in_the_way_of_a_request():
    """Rows for chain entries are taken only while there are any."""
    layout = engine_of().describe().store_layout
    share = 4 * (layout.segment_bytes(64) + 64 * layout.kv_slot_bytes) + 2 * layout.state_row_bytes
    engine = engine_of(budget_bytes=share)
    messages = [request_of(chat(tokens(i, 9)), session_id=f"s{i}") for i in range(8)]
    for message in messages:
        engine.submit(message)
    events = drain(engine)
    for message in messages:
        check_ended(events_of(events, message.request_id))
