"""Replies sorted into reasoning, text and calls: the same however the text is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.prompt.reply_reader import (
    ReplyReader,
    ReplyRules,
    Said,
    SaidReasoning,
    SaidText,
)
from hypic_sdk.prompt.tool_calls import SaidCall, ToolFormat, write_call

TYPES = {"text": "string", "whole": "integer", "many": "array", "thing": "object", "yes": "boolean"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "properties": {name: {"type": kind} for name, kind in TYPES.items()},
            },
        },
    }
]
ALL = ReplyRules(reasons=True, tools=TOOLS)
WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
PIECES = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ", "a", "<", "{", '"', "}",
     '{"name": "look_up", "arguments": {}}', "<function=look_up>", "</function>", "</tool"]
)  # fmt: skip
VALUES = {
    "text": st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12),
    "whole": st.integers(-99, 99),
    "many": st.lists(WORDS, max_size=3),
    "thing": st.dictionaries(WORDS, st.integers(), max_size=2),
    "yes": st.booleans(),
}
ARGUMENTS = st.fixed_dictionaries({}, optional=VALUES)


def read(text: str, cuts: Sequence[int] = (), rules: ReplyRules = ALL) -> list[Said]:
    """What a reader says of a text that comes in stretches, neighbours of a kind joined."""
    reader = ReplyReader(rules)
    edges = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    said: list[Said] = []
    for start, stop in itertools.pairwise(edges):
        said += reader.push(text[start:stop])
    return ReplyReader._joined(iter([*said, *reader.finish()]))


@given(text=st.lists(PIECES | WORDS, max_size=12).map("".join), cuts=st.lists(st.integers(0, 80)))
@pytest.mark.parametrize("begins", [False, True])
def test_how_it_is_cut_does_not_matter(text: str, cuts: list[int], begins: bool) -> None:
    rules = ReplyRules(reasons=True, begins_reasoning=begins, tools=TOOLS)
    assert read(text, cuts, rules) == read(text, range(len(text)), rules) == read(text, (), rules)


@given(st.lists(PIECES | WORDS, max_size=12).map("".join))
def test_without_rules_all_is_text(text: str) -> None:
    assert read(text, (1, 3), ReplyRules()) == ([SaidText(text)] if text else [])


@given(st.lists(PIECES | WORDS, max_size=10).map("".join))
def test_nothing_but_white_space_and_tags_is_lost(text: str) -> None:
    """What is not a call comes back as it was said."""
    said = read(text, (2,), ReplyRules(tools=TOOLS))
    if not any(isinstance(one, SaidCall) for one in said):
        assert "".join(one.text for one in said if isinstance(one, SaidText)) == text


@given(form=st.sampled_from(ToolFormat), arguments=ARGUMENTS, cuts=st.lists(st.integers(0, 200)))
def test_a_call_that_was_written_is_read(form, arguments, cuts):
    if form is ToolFormat.TAGS and any("</" in one for one in map(str, arguments.values())):
        arguments = {}  # a value that holds the closing tags can not be told from them
    text = f"I look.\n\n{write_call(form, 'look_up', arguments)}\n"
    said_text, call = read(text, cuts)
    assert said_text == SaidText("I look.")
    assert isinstance(call, SaidCall)
    assert (call.name, json.loads(call.arguments)) == ("look_up", arguments)


@pytest.mark.parametrize("form", ToolFormat)
def test_several_calls_and_their_limit(form):
    text = "\n".join(write_call(form, "look_up", {"whole": number}) for number in range(3))
    numbers = [json.loads(call.arguments)["whole"] for call in read(text)]
    assert numbers == [0, 1, 2]
    assert len(read(text, (), ReplyRules(tools=TOOLS, max_calls=1))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\nlook it up\n</tool_call>",
        '<tool_call>{"name": "look_up", "arguments": {"a": 1}</tool_call> and so on',
        '<tool_call>{"name": "look_up", "arguments": "no object"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>[]</tool_call>",
        "so <tool_call><function=look_up><parameter=text>a</function></tool_call>",
        "<tool_call><function=look_up>\nloose\n</function></tool_call>",
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        "a </tool_call>",
    ],
)
def test_half_formed_calls_are_text(text):
    assert read(text, (3, 14)) == [SaidText(text)]


def test_a_call_begun_anew_inside_of_a_broken_one():
    text = '<tool_call>{"name": <tool_call>{"name": "look_up", "arguments": {}}</tool_call>'
    assert read(text) == [SaidText('<tool_call>{"name": '), SaidCall("look_up", "{}")]


def test_a_call_whose_last_tag_is_missing():
    assert read('<tool_call>\n{"name": "look_up", "arguments": {}}') == [SaidCall("look_up", "{}")]


def test_a_closing_tag_within_an_argument():
    arguments = {"text": "</tool_call> <tool_call>"}
    [call] = read(write_call(ToolFormat.JSON, "look_up", arguments), (20, 60))
    assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize(
    ("text", "begins", "said"),
    [
        ("<think>\nhm\n</think>\n\nYes", False, [SaidReasoning("hm"), SaidText("Yes")]),
        ("hm\n</think>\n\nYes", True, [SaidReasoning("hm"), SaidText("Yes")]),
        ("\n<think></think>Yes", False, [SaidText("Yes")]),
        ("hm", True, [SaidReasoning("hm")]),
        ("Yes <think>no</think>", False, [SaidText("Yes <think>no</think>")]),
        ("<tool_call></think>Yes", True, [SaidReasoning("<tool_call>"), SaidText("Yes")]),
    ],
)
def test_reasoning(text, begins, said):
    assert read(text, (), ReplyRules(reasons=True, begins_reasoning=begins, tools=TOOLS)) == said


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": "integer"}, "3", 3),
        ({"type": "number"}, "3", 3),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "3", "3"),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "[1]", [1]),
        ({"$ref": "#/$defs/Kind"}, "3", 3),
        ({"enum": ["3", "4"]}, "3", "3"),
        ({"const": True}, "true", True),
        ({"$ref": "#/properties/it"}, "3", "3"),
        ({"type": "integer"}, "three", "three"),
        (None, "3", "3"),
    ],
)
def test_parameters_in_tags_have_the_types_of_their_schema(schema, text, value):
    parameters = {"properties": {"it": schema}, "$defs": {"Kind": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    written = f"<tool_call><function=f><parameter=it>\n{text}\n</parameter></function></tool_call>"
    [call] = read(written, (), ReplyRules(tools=tools))
    assert json.loads(call.arguments) == {"it": value}
