"""What is wrong with a body is one kind of error, with the place and the limit in it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.errors import RequestError, UnsupportedOption
from hypic_sdk.wire import limits
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.segments import RegisterRequest, SegmentIds

USER = {"role": "user", "content": "Q"}


def chat(*messages: Any, **fields: Any) -> ChatRequest:
    return parse(ChatRequest, {"messages": list(messages) or [USER], **fields})


def content(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages.0"),
        ({"role": "critic", "content": "Q"}, "messages.0.role"),
        ({"role": "user", "content": 3}, "messages.0.content"),
        ({"role": "user", "content": "a\ud800"}, "messages.0.content"),
        (content({"type": "image_url", "image_url": {"url": "x"}}), "messages.0.content.0"),
        (content({"type": "text"}), "messages.0.content.0.text"),
        (content({"type": "text", "text": "a\ud800"}), "messages.0.content.0.text"),
        (content({"type": "text", "text": "a"}, {"type": "segment"}), "messages.0.content.1"),
        (content({"type": "segment", "text": ""}), "messages.0.content.0.text"),
        (content({"type": "segment", "segment_id": "seg_x"}), "messages.0.content.0.segment_id"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]},
            "messages.0.tool_calls.0.function.name",
        ),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "messages.0.tool_call_id"),
    ],
)
def test_a_wrong_message_is_named_by_its_place(message, param):
    with pytest.raises(RequestError) as caught:
        chat(message)
    assert caught.value.details["param"] == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param", "limit"),
    [
        ({"max_tokens": -1}, "max_tokens", {"ge": 0}),
        ({"temperature": -0.1}, "temperature", {"ge": 0.0}),
        ({"top_p": 0}, "top_p", {"gt": 0.0}),
        ({"top_p": 1.5}, "top_p", {"le": 1.0}),
        ({"top_k": -2}, "top_k", {"ge": -1}),
        ({"seed": 2**63}, "seed", {"le": 2**63 - 1}),
        ({"stop": ["a"] * 17}, "stop", {"max_length": limits.MAX_STOPS, "actual_length": 17}),
        ({"stop": ["a", ""]}, "stop.1", {"min_length": 1}),
        ({"stop": "a" * 257}, "stop", {"max_length": limits.MAX_STOP_CHARS}),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", {"le": limits.MAX_TOP_LOGPROBS}),
        ({"documents": [{}]}, "documents.0", {}),
        ({"documents": [{"text": "a"}] * 4097}, "documents", {"max_length": 4096}),
        ({"tools": [{}] * 257}, "tools", {"max_length": limits.MAX_TOOLS}),
        ({"hypic": {"session_id": "a" * 257}}, "hypic.session_id", {"max_length": 256}),
    ],
)
def test_a_value_out_of_bounds_is_told_with_its_bound(fields, param, limit):
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert not isinstance(caught.value, UnsupportedOption)
    details = caught.value.details
    assert details["param"] == param
    assert {name: details[name] for name in limit} == limit
    # an error travels as JSON
    assert json.loads(json.dumps(caught.value.to_payload()))["details"]["param"] == param


@pytest.mark.parametrize(
    ("hypic", "param"),
    [
        ({"mode": "prefix"}, "hypic.mode"),
        ({"seam_tokens": 8}, "hypic.seam_tokens"),
        ({"sesion_id": "s"}, "hypic.sesion_id"),
        ({"on_missing": "skip"}, "hypic.on_missing"),
        ({"report": True}, "hypic.report"),
    ],
)
def test_our_own_options_may_not_be_misspelt(hypic, param):
    with pytest.raises(UnsupportedOption) as caught:
        chat(hypic=hypic)
    assert caught.value.details["param"] == param


def test_other_unknown_fields_are_ignored():
    request = chat({**USER, "refusal": None}, user="me", metadata={}, parallel_tool_calls=True)
    assert request.messages[0].content == "Q"


@pytest.mark.parametrize("body", [None, [], "x", {}, {"messages": []}, {"messages": "x"}])
def test_what_is_no_body_at_all(body):
    with pytest.raises(RequestError):
        parse(ChatRequest, body)


def test_alternatives_to_tokens_need_log_probabilities():
    with pytest.raises(RequestError, match="top_logprobs needs logprobs"):
        chat(top_logprobs=3)


def test_schemas_have_a_cap_in_all():
    text = "x" * (limits.MAX_TOOLS_JSON_CHARS // 2)
    big = [{"type": "function", "function": {"name": name, "description": text}} for name in "ab"]
    assert chat(tools=big[:1])
    with pytest.raises(RequestError, match=str(limits.MAX_TOOLS_JSON_CHARS)):
        chat(tools=big)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_are_numbers(value):
    with pytest.raises(RequestError):
        chat(temperature=value)


class TestPlainPrompts:
    def test_several_bare_strings_would_be_several_prompts(self):
        with pytest.raises(RequestError, match="several prompts"):
            parse(CompletionRequest, {"prompt": ["a", "b"]})
        assert parse(CompletionRequest, {"prompt": ["a"]}).prompt == ["a"]

    @pytest.mark.parametrize("prompt", [[], None, [3], [[1, 2]], {"text": "a"}])
    def test_what_is_no_prompt(self, prompt):
        with pytest.raises(RequestError):
            parse(CompletionRequest, {"prompt": prompt})


class TestSegments:
    @pytest.mark.parametrize(
        "item", [{}, {"text": ""}, {"text": "a\ud800"}, {"text": "a", "external_id": ""},
                 {"text": "a", "metadata": {"a": [1]}}, {"text": "a", "metadata": {"": 1}}],
    )  # fmt: skip
    def test_what_can_not_be_registered(self, item):
        with pytest.raises(RequestError):
            parse(RegisterRequest, {"segments": [item]})

    def test_how_many_at_once(self):
        with pytest.raises(RequestError) as caught:
            parse(RegisterRequest, {"segments": [{"text": "a"}] * 257})
        assert caught.value.details["max_length"] == limits.MAX_SEGMENTS_PER_CALL

    @pytest.mark.parametrize("ids", [[], ["seg_"], ["seg_" + "A" * 32], ["x" * 36]])
    def test_what_is_no_id(self, ids):
        with pytest.raises(RequestError):
            parse(SegmentIds, {"segment_ids": ids})


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from([*ChatRequest.model_fields, "prompt", "x"])


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest, RegisterRequest, SegmentIds])
@given(body=st.dictionaries(names, json_values, max_size=5), with_message=st.booleans())
def test_any_json_is_a_request_or_a_request_error(model, body, with_message):
    if with_message:
        body["messages"] = [USER]
    # any other error would be one of ours
    with contextlib.suppress(RequestError):
        parse(model, body)
