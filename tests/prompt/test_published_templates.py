"""Templates with the features of the published ones: no segment loses or moves a character.

The templates are ours (`tests/prompt/published.py` says so, and why).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.doctor.prompts import template_facts
from hypic_sdk.prompt.pieces import CallerText, Message, RenderedPrompt
from hypic_sdk.prompt.segment import SegmentedPrompt
from hypic_sdk.prompt.segmenter import segment_prompt
from tests.prompt import tiny
from tests.prompt.conversations import message, numbered, plain_words, short_texts, text, turns
from tests.prompt.published import TEMPLATES as SOURCES
from tests.prompt.test_chat_template import TOOL, caller_texts, joined, oracle, template_texts

TOKENIZER = tiny.tokenizer()
TEMPLATES = {name: tiny.chat_template(source) for name, source in SOURCES.items()}
QWEN = [name for name in SOURCES if name != "parts"]

every_template = pytest.mark.parametrize("name", TEMPLATES)
every_qwen = pytest.mark.parametrize("name", QWEN)
some = settings(max_examples=60)
thinking = st.sampled_from(
    [{}, {"enable_thinking": True}, {"enable_thinking": False}, {"preserve_thinking": True}]
)


@st.composite
def conversations(draw: st.DrawFn, contents: st.SearchStrategy[str] = short_texts) -> list[Message]:
    """Turns in which replies before a tool's message call that tool."""
    messages = draw(turns(contents))
    for index, one in enumerate(messages[:-1]):
        if one.role == "assistant" and messages[index + 1].role == "tool":
            values = draw(st.lists(contents, min_size=1, max_size=2))
            calls = [call({"town": value, "depth": 3, "more": [value]}) for value in values]
            messages[index] = replace(one, extra={"tool_calls": calls})
    return messages


def call(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look_up", "arguments": arguments}}


def is_split(one: Message, part: CallerText) -> bool:
    """Whether a reply's text is taken apart into reasoning and text: never a segment."""
    return one.role == "assistant" and "</think>" in part.text


def places(pieces: Sequence[CallerText]) -> list[tuple[int, int]]:
    return [(piece.message_index, piece.content_index) for piece in pieces]


def render(name: str, messages: Sequence[Message], tools: bool, **options: Any) -> RenderedPrompt:
    return TEMPLATES[name].render(messages, tools=[TOOL] if tools else (), options=options)


@every_template
@some
@given(messages=conversations(), tools=st.booleans(), options=thinking)
def test_segments_stand_whole_once_and_in_order(
    name: str, messages: list[Message], tools: bool, options: dict[str, bool]
) -> None:
    """In system, user and tool messages, thinking on and off, with tools and without."""
    rendered = render(name, messages, tools, **options)
    given_segments = [part for one in messages for part in one.content if part.segment_id]
    shown = [piece for piece in caller_texts(rendered) if piece.segment_id]
    assert [(p.text, p.segment_id) for p in shown] == [
        (p.text, p.segment_id) for p in given_segments
    ]
    assert places(shown) == places(given_segments)
    # and so do all other texts of system, user and tool messages
    others = [p.text for one in messages if one.role != "assistant" for p in one.content]
    assert Counter(piece.text for piece in caller_texts(rendered)) >= Counter(others)


@every_template
@some
@given(messages=conversations(), tools=st.booleans(), options=thinking)
def test_no_callers_text_makes_a_control_token(
    name: str, messages: list[Message], tools: bool, options: dict[str, bool]
) -> None:
    """Control tokens of the prompt are those of the same conversation in plain words."""
    if any(is_split(one, part) for one in messages for part in one.content):
        return
    prompt = segment_prompt(render(name, messages, tools, **options), TOKENIZER)
    plain = segment_prompt(render(name, in_plain_words(messages), tools, **options), TOKENIZER)
    assert control_ids(prompt) == control_ids(plain)
    for part in prompt.parts:
        if part.segment_id is not None:
            assert TOKENIZER.control_ids.isdisjoint(part.token_ids)


def control_ids(prompt: SegmentedPrompt) -> list[int]:
    ids = [id_ for part in prompt.parts for id_ in part.token_ids]
    return [id_ for id_ in ids if id_ in TOKENIZER.control_ids]


def in_plain_words(messages: list[Message]) -> list[Message]:
    """The same conversation with every text of it, arguments of calls too, said as "town"."""

    def plain(part: CallerText) -> CallerText:
        return replace(part, text="town")

    return [
        replace(
            one,
            content=tuple(map(plain, one.content)),
            reasoning=one.reasoning and plain(one.reasoning),
            extra={
                name: [call({"town": "town", "depth": 3, "more": ["town"]}) for _ in calls]
                for name, calls in one.extra.items()
            },
        )
        for one in messages
    ]


@every_template
@some
@given(messages=conversations(), options=thinking)
def test_a_segments_tokens_are_its_text(
    name: str, messages: list[Message], options: dict[str, bool]
) -> None:
    """Byte for byte, and the same tokens as anywhere else."""
    rendered = render(name, messages, False, **options)
    segments = [piece for piece in caller_texts(rendered) if piece.segment_id]
    parts = [p for p in segment_prompt(rendered, TOKENIZER).parts if p.segment_id]
    # a segment that stands last is the trailing part, and one of no tokens is none
    for part, piece in zip(parts, segments, strict=False):
        assert part.segment_id == piece.segment_id
        assert part.token_ids == TOKENIZER.encode_text(piece.text)
        assert TOKENIZER.decode(part.token_ids) == piece.text


@every_template
@some
@given(messages=conversations(), data=st.data(), options=thinking)
def test_template_text_depends_on_no_callers_text(
    name: str, messages: list[Message], data: st.DataObject, options: dict[str, bool]
) -> None:
    """Neither trimming nor a search for tags sees what a message says."""
    if any(is_split(one, part) for one in messages for part in one.content):
        return

    def other(part: CallerText) -> CallerText:
        return replace(part, text=data.draw(plain_words))

    others = [
        replace(
            one,
            content=tuple(map(other, one.content)),
            reasoning=one.reasoning and other(one.reasoning),
        )
        for one in messages
    ]
    got, want = (template_texts(render(name, m, False, **options)) for m in (messages, others))
    assert got == want


@every_qwen
@some
@given(messages=conversations(plain_words), tools=st.booleans(), options=thinking)
def test_plain_words_render_as_in_the_library_that_templates_are_written_for(
    name: str, messages: list[Message], tools: bool, options: dict[str, bool]
) -> None:
    rendered = render(name, messages, tools, **options)
    extra = {"tools": [TOOL]} if tools else {}
    assert joined(rendered) == oracle(SOURCES[name], messages, **extra, **options)


def test_thinking_on_and_off_differ_behind_the_messages_alone() -> None:
    messages = numbered([message("user", text("A town.", segment=True), " Where?")])
    on, off = (render("qwen3.5", messages, False, enable_thinking=x) for x in (True, False))
    assert joined(on).endswith("<|im_start|>assistant\n<think>\n")
    assert joined(off).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    shared = joined(on).rindex("<think>")
    assert joined(on)[:shared] == joined(off)[:shared]


def two_turns() -> list[Message]:
    first = replace(message("assistant", "On the Ash."), reasoning=text("rivers first"))
    called = replace(message("assistant", "Wait."), reasoning=text("look it up"),
                     extra={"tool_calls": [call({"town": "Norwick"})]})  # fmt: skip
    return numbered(
        [message("user", "Where?"), first, message("user", "Sure?"), called, message("tool", "yes")]
    )


@every_qwen
def test_reasoning_of_earlier_turns_is_dropped_and_of_this_one_kept(name: str) -> None:
    shown = [piece.text for piece in caller_texts(render(name, two_turns(), False))]
    assert shown == ["Where?", "On the Ash.", "Sure?", "look it up", "Wait.", "yes"]


def test_reasoning_is_kept_where_the_template_is_told_to() -> None:
    rendered = render("qwen3.5", two_turns(), False, preserve_thinking=True)
    assert "rivers first" in [piece.text for piece in caller_texts(rendered)]


@every_qwen
def test_results_of_one_turn_stand_in_one_message(name: str) -> None:
    messages = numbered([message("user", "Q"), message("assistant", "A", tool_calls=[
        call({"town": "Norwick"}), call({"town": "Ashby"})]), message("tool", "one"),
        message("tool", text("two", segment=True))])  # fmt: skip
    whole = joined(render(name, messages, True))
    assert (
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n"
        "<tool_response>\ntwo\n</tool_response><|im_end|>\n"
    ) in whole


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("qwen3.5", "<tool_call>\n<function=look_up>\n<parameter=town>\nNorwick\n</parameter>\n"),
        ("qwen3-next-instruct", '<tool_call>\n{"name": "look_up", "arguments": {"town": "Norwick"'),
    ],
)
def test_calls_are_written_as_the_model_writes_them(name: str, written: str) -> None:
    messages = numbered([message("user", "Q"), message("assistant", "", tool_calls=[
        call({"town": "Norwick", "depth": 3})]), message("tool", "x")])  # fmt: skip
    assert written in joined(render(name, messages, True))


@every_qwen
def test_schemas_stand_in_the_system_message_with_its_segments(name: str) -> None:
    system = message("system", "Rules: ", text("  A registered rule.\n", segment=True), " Go.")
    rendered = render(name, numbered([system, message("user", "Q")]), True)
    whole = joined(rendered)
    end = whole.index("<|im_end|>")
    assert json.dumps(TOOL) in whole[:end]
    assert "Rules:   A registered rule.\n Go." in whole[:end]
    assert whole.count("<|im_start|>system") == 1


def test_developer_messages_may_stand_anywhere_where_the_template_takes_them() -> None:
    messages = numbered([message("user", "Q"), message("developer", text(" now \n", segment=True)),
                         message("user", "R")])  # fmt: skip
    assert "developer\n now \n<|im_end|>" in joined(render("qwen3-next-instruct", messages, False))


def test_a_template_that_knows_lists_of_parts_alone_gets_lists() -> None:
    messages = numbered([message("user", " A ", text("\n doc \n", segment=True), "", " B ")])
    rendered = render("parts", messages, False)
    assert [piece.text for piece in caller_texts(rendered)] == [" A ", "\n doc \n", " B "]
    # one that takes both is given strings, as before
    assert [p.text for p in caller_texts(render("qwen3.5", messages, False))] == [
        " A ",
        "\n doc \n",
        " B ",
    ]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "qwen3.5",
            {
                "roles": ("system", "tool"),
                "thinking_switch": True,
                "opens_thinking": True,
                "call_format": "xml",
            },
        ),
        (
            "qwen3-next-instruct",
            {
                "roles": ("system", "developer", "tool"),
                "thinking_switch": False,
                "opens_thinking": False,
                "call_format": "json",
            },
        ),
        ("qwen3-next-thinking", {"thinking_switch": False, "opens_thinking": True}),
    ],
)
def test_the_doctor_sees_these_features(name: str, facts: dict[str, Any]) -> None:
    found = template_facts(TEMPLATES[name], TOKENIZER)
    assert {key: getattr(found, key) for key in facts} == facts
    assert found.segments_in == ("system", "user", "tool")
    assert found.tools
    assert found.shows_reasoning
    assert found.drops_earlier_reasoning
    assert found.message_borders
    assert found.ends_reply_with == "<|im_end|>"
