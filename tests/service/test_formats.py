"""What a reply is held to: every grammar that is made takes what it should, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from hypic_sdk.demo import reader_path
from hypic_sdk.errors import InvalidGrammar, RequestError, UnsupportedOption
from hypic_sdk.prompt.grammar import check_grammar, compilable, limits
from hypic_sdk.prompt.tokenizer import TOKENIZER_FILE, PromptTokenizer
from hypic_sdk.prompt.tool_calls import ToolFormat, write_call
from hypic_sdk.service.formats import reply_grammar
from hypic_sdk.transport.messages import Grammar, GrammarKind
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.parse import parse
from tests.prompt import tiny

TOKENIZER = PromptTokenizer.from_folder(reader_path())
MATCHERS = LLTokenizer(str(reader_path() / TOKENIZER_FILE), eos_token=8178)
ADD = {
    "type": "object",
    "properties": {
        "whole": {"type": "integer"},
        "text": {"type": "string"},
        "kind": {"type": "string", "enum": ["a b", 'c"d']},
        "thing": {"$ref": "#/$defs/Thing"},
    },
    "required": ["whole", "text"],
    "$defs": {"Thing": {"type": "object", "properties": {"n": {"type": "null"}}}},
}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "adds", "parameters": ADD}},
    {"type": "function", "function": {"name": "no-arguments"}},
]
NAMED = {"type": "function", "function": {"name": "add"}}
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="<\r"), max_size=12)


def body(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, {"messages": [{"role": "user", "content": "x"}], **fields})


def made(form: ToolFormat = ToolFormat.TAGS, *, begins: bool = False, **fields: Any) -> Grammar:
    grammar = reply_grammar(body(**fields), TOKENIZER, form=form, begins_reasoning=begins)
    assert grammar is not None
    check_grammar(grammar)
    return grammar


def takes(grammar: Grammar, text: str) -> bool:
    """Whether a text, with its tags as tokens, is a whole reply."""
    matcher = LLMatcher(MATCHERS, compilable(grammar), log_level=0, limits=limits())
    assert not matcher.is_error(), matcher.get_error()
    ids = list(TOKENIZER.encode_template(text).token_ids)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("form", ToolFormat)
@settings(max_examples=40)
@given(
    arguments=st.fixed_dictionaries(
        {"whole": st.integers(-99, 99), "text": TEXTS},
        optional={"kind": st.sampled_from(["a b", 'c"d']), "thing": st.just({"n": None})},
    )
)
def test_a_call_that_is_written_right_is_taken(form, arguments):
    """Its arguments stand in the order of the schema."""
    arguments = {name: arguments[name] for name in ADD["properties"] if name in arguments}
    assert takes(made(form, tools=TOOLS, tool_choice=NAMED), write_call(form, "add", arguments))


@pytest.mark.parametrize("form", ToolFormat)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("add", {"whole": 1}),
        ("add", {"whole": "one", "text": "a"}),
        ("add", {"whole": 1, "text": "a", "kind": "e"}),
        ("no-arguments", {}),
        ("other", {}),
    ],
)
def test_a_call_that_is_wrong_is_not(form, name, arguments):
    grammar = made(form, tools=TOOLS, tool_choice=NAMED)
    assert not takes(grammar, write_call(form, name, arguments))
    assert not takes(grammar, "I would rather talk.")


@pytest.mark.parametrize("form", ToolFormat)
def test_required_is_one_of_all_tools_and_several_only_where_wished(form):
    none, one = (
        write_call(form, "no-arguments", {}),
        write_call(form, "add", {"whole": 1, "text": ""}),
    )
    single = made(form, tools=TOOLS, tool_choice="required")
    many = made(form, tools=TOOLS, tool_choice="required", parallel_tool_calls=True)
    for text in (none, one):
        assert takes(single, text)
        assert takes(many, text)
    assert not takes(single, f"{none}\n{one}")
    assert takes(many, f"{none}\n{one}\n{none}")


FORMS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_object"}}, '{"a": [1]}', "[1]"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": ADD}}},
        '{"whole": 1, "text": "/"}',
        '{"whole": "1", "text": ""}',
    ),
    ({"structured_outputs": {"json": {"type": "integer"}}}, "12", '"12"'),
    ({"structured_outputs": {"json": '{"type": "integer"}'}}, "12", '"12"'),
    ({"structured_outputs": {"json_object": True}}, "{}", "1"),
    ({"structured_outputs": {"choice": ['a"b', "c\nd", "ä"]}}, "c\nd", "c"),
    ({"structured_outputs": {"regex": "a/b|c{2}"}}, "a/b", "a/b|"),
    ({"guided_json": {"enum": [None, "x"]}}, "null", "x"),
    ({"guided_regex": r"\d+\/?"}, "12/", "/"),
    ({"guided_choice": ["yes", "no"]}, "no", "maybe"),
]


@pytest.mark.parametrize(("fields", "right", "wrong"), FORMS)
@pytest.mark.parametrize("begins", [False, True])
def test_forms(fields, right, wrong, begins):
    """With reasoning begun, the form holds behind its end."""
    grammar = made(begins=begins, **fields)
    before = "I think < of </this>.\n</think>\n\n" if begins else ""
    assert takes(grammar, before + right)
    assert not takes(grammar, before + wrong)
    if begins:
        assert not takes(grammar, right)


@pytest.mark.parametrize("form", ToolFormat)
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize(("fields", "right", "wrong"), FORMS[:2])
def test_a_form_beside_tools_leaves_calls_to_the_model(form, begins, fields, right, wrong):
    before = "hm\n</think>\n\n" if begins else ""
    call = write_call(form, "no-arguments", {})
    grammar = made(form, begins=begins, tools=TOOLS, **fields)
    assert takes(grammar, before + right)
    assert takes(grammar, before + call)
    assert not takes(grammar, before + wrong)
    assert not takes(grammar, f"{before}{right}{call}")
    silent = made(form, begins=begins, tools=TOOLS, tool_choice="none", **fields)
    assert takes(silent, before + right)
    assert not takes(silent, before + call)


@pytest.mark.parametrize("form", ToolFormat)
def test_a_call_behind_reasoning(form):
    grammar = made(form, begins=True, tools=TOOLS, tool_choice="required")
    call = write_call(form, "no-arguments", {})
    assert takes(grammar, f"hm\n</think>\n\n{call}")
    assert not takes(grammar, call)


@pytest.mark.parametrize("begins", [False, True])
def test_white_space_in_json_has_an_end(begins):
    """A small model that may write spaces writes nothing else."""
    grammar = made(begins=begins, guided_json={"type": "array", "items": {"type": "null"}})
    before = "</think>\n\n" if begins else ""
    assert takes(grammar, before + "[null,\n    null ]")
    assert not takes(grammar, before + "[null," + " " * 9 + "null]")
    own = {"type": "array", "x-guidance": {"whitespace_flexible": False}}
    assert not takes(made(guided_json=own), "[1, 2]")


def test_a_text_in_tags_keeps_to_its_length():
    text = {"type": "string", "minLength": 2, "maxLength": 4}
    parameters = {"type": "object", "required": ["a"], "properties": {"a": text}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    grammar = made(tools=tools, tool_choice="required")
    for said, is_right in (("a", False), ("ab", True), ("a\nbc", True), ("abcde", False)):
        assert takes(grammar, write_call(ToolFormat.TAGS, "f", {"a": said})) == is_right


def test_a_grammar_of_the_callers_own():
    source = 'start: "a" start | "b"'
    for fields in ({"structured_outputs": {"grammar": source}}, {"guided_grammar": source}):
        assert takes(made(**fields), "aab")
        with pytest.raises(UnsupportedOption, match="enable_thinking"):
            made(begins=True, **fields)


def test_without_a_wish_there_is_no_grammar():
    for fields in ({}, {"response_format": {"type": "text"}}, {"tools": TOOLS}):
        assert reply_grammar(body(**fields), TOKENIZER) is None
    wished = body(tools=TOOLS, tool_choice="none", guided_regex="a")
    assert reply_grammar(wished, TOKENIZER) == Grammar(GrammarKind.REGEX, "a")


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "a", "guided_choice": ["b"]},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        {"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"},
        {"tools": [TOOLS[0], TOOLS[0]]},
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"guided_json": {"a": "x" * 200_000}},
    ],
)
def test_what_can_not_be_meant_is_refused(fields):
    with pytest.raises(RequestError):
        body(**fields)


@pytest.mark.parametrize("form", ToolFormat)
@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": 3},
        {"properties": {"a": 3}},
        {"type": "object", "properties": {"a": {}}, "required": 3},
        {"type": "object", "properties": {"a": {"type": "string", "enum": "abc"}}},
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": "x})/"}}},
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 10**9}}},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"a": {"type": ["string", "no such"]}}},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": -5}}},
    ],
)
def test_odd_schemas_make_a_grammar_or_are_refused(form, parameters):
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    try:
        made(form, tools=tools, tool_choice="required")
    except InvalidGrammar:
        return
    assert parameters.get("properties") != 3


def test_a_tokenizer_without_the_tags_has_them_as_text():
    tokenizer = PromptTokenizer({**tiny.byte_level(), "added_tokens": []}, {})
    for begins in (False, True):
        for form in ToolFormat:
            grammar = reply_grammar(
                body(tools=TOOLS, tool_choice="required"),
                tokenizer,
                form=form,
                begins_reasoning=begins,
            )
            assert grammar is not None
            check_grammar(grammar)
            assert '"<tool_call>"' in grammar.source
