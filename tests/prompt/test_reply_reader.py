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
from hypic_sdk.prompt.tool_calls import (
    CallArguments,
    CallBegun,
    SaidCall,
    ToolFormat,
    calls_of,
    write_call,
)

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
     '{"name": "look_up", "arguments": {}}', "<function=look_up>", "</function>", "</tool",
     '{"name": "look_up", "arguments": {"text": "', "<parameter=text>", "<parameter=many>",
     "</parameter>", "[1]"]
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
    if not any(isinstance(one, CallBegun) for one in said):
        assert "".join(one.text for one in said if isinstance(one, SaidText)) == text


@given(form=st.sampled_from(ToolFormat), arguments=ARGUMENTS, cuts=st.lists(st.integers(0, 200)))
def test_a_call_that_was_written_is_read(form, arguments, cuts):
    if form is ToolFormat.TAGS and any("</" in one for one in map(str, arguments.values())):
        arguments = {}  # a value that holds the closing tags can not be told from them
    text = f"I look.\n\n{write_call(form, 'look_up', arguments)}\n"
    said = read(text, cuts)
    [call] = calls_of(said)
    assert said[0] == SaidText("I look.")
    assert all(isinstance(one, CallBegun | CallArguments) for one in said[1:])
    assert (call.name, json.loads(call.arguments)) == ("look_up", arguments)


@pytest.mark.parametrize("form", ToolFormat)
def test_several_calls_and_their_limit(form):
    text = "\n".join(write_call(form, "look_up", {"whole": number}) for number in range(3))
    numbers = [json.loads(call.arguments)["whole"] for call in calls_of(read(text))]
    assert numbers == [0, 1, 2]
    [first] = calls_of(read(text, (), ReplyRules(tools=TOOLS, max_calls=1)))
    assert json.loads(first.arguments) == {"whole": 0}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\nlook it up\n</tool_call>",
        '<tool_call>{"name": "look_up", "arguments"</tool_call> and so on',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "look_up", "arguments": "no object"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>[]</tool_call>",
        "so <tool_call><function=look_up><parameter=</function></tool_call>",
        "so <tool_call><function=look_up>\n",
        "<tool_call><function=look_up>\nloose\n</function></tool_call>",
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        "a </tool_call>",
    ],
)
def test_half_formed_calls_are_text(text):
    assert read(text, (3, 14)) == [SaidText(text)]


def test_a_call_begun_anew_inside_of_a_broken_one():
    text = '<tool_call>{"name": <tool_call>{"name": "look_up", "arguments": {}}</tool_call>'
    said = [SaidText('<tool_call>{"name": '), CallBegun("look_up"), CallArguments("{}")]
    assert read(text) == said


def test_a_call_whose_last_tag_is_missing():
    said = [CallBegun("look_up"), CallArguments("{}")]
    assert read('<tool_call>\n{"name": "look_up", "arguments": {}}') == said


@given(form=st.sampled_from(ToolFormat), text=WORDS, data=st.data())
def test_a_call_comes_as_it_is_said(form, text, data):
    """The name before the arguments, and of these never less than a few characters of tags."""
    arguments = {"text": f"so {text} it is".replace("</", ""), "whole": 3}
    written = write_call(form, "look_up", arguments)
    end = data.draw(st.integers(0, len(written)))
    reader = ReplyReader(ALL)
    said = [one for character in written[:end] for one in reader.push(character)]
    sure = "".join(one.text for one in said if isinstance(one, CallArguments))
    [whole] = calls_of(read(written))
    assert whole.arguments.startswith(sure)
    assert json.loads(whole.arguments) == arguments
    begins = written.index('{"text"' if form is ToolFormat.JSON else "<parameter")
    frame = len("<parameter=text>\n</parameter>\n")
    if end >= begins + frame:
        assert said[0] == CallBegun("look_up")
        typed = len("<parameter=whole>\n3\n</parameter>")
        last = whole.arguments.rindex("it is")
        assert len(sure) >= min(end - begins - frame, last) - typed


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        ('{"name": "look_up", "arguments": {"a": 1, "b": "so', '{"a": 1, "b": "so', ""),
        ('{"name": "look_up", "arguments": {"a": 1</tool_call>Yes', '{"a": 1', "Yes"),
        ('{"name": "look_up", "arguments": {"a": 1}</tool_call>Yes', '{"a": 1}', "Yes"),
        ('{"name": "look_up", "arguments": {"a": 1}, "id": [{}]}</tool', '{"a": 1}', ""),
        ('{"name": "look_up", "arguments": {}} Yes', "{}", "Yes"),
        ("<function=look_up><parameter=text>\na</function>", '{"text": "a</function>', ""),
        ("<function=look_up><parameter=whole>\n3", '{"whole": ', ""),
        ("<function=look_up><parameter=text>a</parameter>Yes", '{"text": "a"', "Yes"),
        ("<function=look_up><parameter=text>a</parameter></tool_call>Yes", '{"text": "a"', "Yes"),
        ("<function=look_up></function></tool_", "{}", ""),
    ],
)
def test_a_call_that_breaks_off_stays_one_and_is_no_whole_json(text, arguments, rest):
    said = read(f"<tool_call>{text}", (40,))
    assert calls_of(said) == [SaidCall("look_up", arguments)]
    assert "".join(one.text for one in said if isinstance(one, SaidText)) == rest


@pytest.mark.parametrize(
    "text",
    [
        '{"arguments": {"text": "a"}, "name": "look_up"}',
        '{"id": 1, "name": "look_up", "arguments": {"text": "a"}}',
        '{"name": "look_up", "arguments": "{\\"text\\": \\"a\\"}"}',
        '{"name": "look_up", "parameters": {"text": "a"}}',
    ],
)
def test_json_in_another_order_or_form(text):
    [call] = calls_of(read(f"<tool_call>{text}</tool_call>", range(60)))
    assert (call.name, json.loads(call.arguments)) == ("look_up", {"text": "a"})


@pytest.mark.parametrize("text", ["\\ud800", "\\ud83d\\ude00"])
def test_what_no_utf8_can_carry_stays_escaped(text):
    for body in (
        f'{{"name": "f", "arguments": {{"a": "{text}"}}}}',
        f'{{"arguments": {{"a": "{text}"}}, "name": "f"}}',
        f'<function=look_up><parameter=many>["{text}"]</parameter></function>',
    ):
        [call] = calls_of(read(f"<tool_call>{body}</tool_call>"))
        call.arguments.encode("utf-8")
        [value] = json.loads(call.arguments).values()
        assert json.loads(f'"{text}"') in (value, value[0])


def test_a_closing_tag_within_an_argument():
    arguments = {"text": "</tool_call> <tool_call>"}
    [call] = calls_of(read(write_call(ToolFormat.JSON, "look_up", arguments), (20, 60)))
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
        ({"type": "number"}, "NaN", "NaN"),
        (None, "3", "3"),
    ],
)
def test_parameters_in_tags_have_the_types_of_their_schema(schema, text, value):
    parameters = {"properties": {"it": schema}, "$defs": {"Kind": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    written = f"<tool_call><function=f><parameter=it>\n{text}\n</parameter></function></tool_call>"
    [call] = calls_of(read(written, (), ReplyRules(tools=tools)))
    assert json.loads(call.arguments) == {"it": value}
