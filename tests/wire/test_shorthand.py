"""Python values become the bodies that they stand for."""

from __future__ import annotations

import pytest

from hypic_sdk.errors import RequestError
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.wire.segment_shorthand import segment_items
from hypic_sdk.wire.segments import SegmentObject
from hypic_sdk.wire.shorthand import chat_request, completion_request, segment_ids

ID = segment_id("A town")
SEGMENT = SegmentObject(id=ID, external_id=None, title=None, metadata={}, tokens=3, created_at=0)


def test_segments_and_texts_in_messages():
    messages = [
        {"role": "user", "content": (SEGMENT, "Where?", {"type": "text", "text": "!"})},
        {"role": "assistant", "content": "There."},
        {"role": "user", "content": "So?"},
    ]
    request = chat_request(iter(messages), {})
    assert [part.model_dump(exclude_none=True) for part in request.messages[0].content] == [
        {"type": "segment", "segment_id": ID},
        {"type": "text", "text": "Where?"},
        {"type": "text", "text": "!"},
    ]
    assert request.messages[1].content == "There."


def test_documents():
    messages = [{"role": "user", "content": "Q"}]
    documents = iter([SEGMENT, "A text", {"segment_id": ID, "title": "T"}])
    request = chat_request(messages, {"documents": documents})
    assert [one.model_dump(exclude_none=True) for one in request.documents] == [
        {"segment_id": ID},
        {"text": "A text"},
        {"segment_id": ID, "title": "T"},
    ]


def test_options_go_through_under_their_names():
    request = chat_request([{"role": "user", "content": "Q"}], {"seed": 3, "stop": ["a"]})
    assert (request.seed, request.stops) == (3, ("a",))


def test_a_keyword_that_does_not_exist_is_a_type_error():
    with pytest.raises(TypeError, match="temprature"):
        chat_request([{"role": "user", "content": "Q"}], {"temprature": 0.5})
    with pytest.raises(TypeError, match="documents"):
        completion_request("x", {"documents": []})


def test_what_is_wrong_with_a_value_is_a_request_error():
    with pytest.raises(RequestError, match="messages"):
        chat_request([], {})


def test_a_prompt_and_its_parts():
    assert completion_request("x", {}).prompt == "x"
    parts = completion_request([SEGMENT, "a", "b"], {}).prompt
    assert [part.type for part in parts] == ["segment", "text", "text"]
    # several strings are parts here: Python callers have no batches
    assert [part.text for part in completion_request(["a", "b"], {}).prompt] == ["a", "b"]


def test_segments_and_their_ids():
    assert segment_ids([SEGMENT, ID]).segment_ids == [ID, ID]


@pytest.mark.parametrize(
    "ask",
    [
        lambda text: chat_request([{"role": "user", "content": "Q"}], {"documents": [text]}),
        lambda text: chat_request([{"role": "user", "content": [text, "Q"]}], {}),
        lambda text: completion_request([text, "Q"], {}),
    ],
    ids=["documents", "content", "prompt"],
)
def test_an_id_is_no_text(ask):
    """A string is an id in `segments.retrieve` and a text here: mistaken, it would be silent."""
    with pytest.raises(RequestError, match="segment_id"):
        ask(ID)
    for text in (f"{ID} ", f"see {ID}", ID.upper(), ID[:-1], f"{ID}\n"):
        ask(text)


@pytest.mark.parametrize("given", ["text", b"text", {"text": "a"}, 5, None], ids=repr)
def test_a_single_thing_is_no_list_of_its_letters(given):
    with pytest.raises(RequestError, match="texts is a list"):
        segment_items(given)


@pytest.mark.parametrize(
    "one", [5, None, b"text", ["text"], 8j, object()], ids=lambda x: str(type(x))
)
def test_what_is_registered_is_a_text_or_its_fields(one):
    with pytest.raises(RequestError, match="a text or its fields") as caught:
        list(segment_items(["fine", one]))
    assert type(one).__name__ in caught.value.message
