"""Prompts made in Python are what the wire takes, and lose nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk import AutoSegmenter, Prompt, Segment, segment_id
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.segments import SegmentObject

A = "Ada lives in Norwick and keeps a parrot. " * 3 + "End of A"


def test_each_piece_is_a_part():
    known = SegmentObject(
        id=segment_id("B"), external_id=None, title=None, metadata={}, tokens=1, created_at=0
    )
    prompt = Prompt().system("Briefly.").user(Segment(A, "a.txt"), "\n", known, "Where?")
    segment = {"type": "segment", "segment_id": segment_id(A), "text": A, "title": "a.txt"}
    assert prompt.to_messages() == [
        {"role": "system", "content": "Briefly."},
        {
            "role": "user",
            "content": [
                segment,
                {"type": "text", "text": "\n"},
                {"type": "segment", "segment_id": segment_id("B")},
                {"type": "text", "text": "Where?"},
            ],
        },
    ]
    assert list(prompt) == prompt.to_messages()


def test_a_conversation_goes_on_and_what_was_made_stays():
    asked = Prompt().user("Where?")
    told = asked.assistant("On the Ash.").tool("call_1", "38").message("user", "So?", name="ada")
    assert [one["role"] for one in told] == ["user", "assistant", "tool", "user"]
    assert told.to_messages()[2]["tool_call_id"] == "call_1"
    assert told.to_messages()[3]["name"] == "ada"
    assert len(asked.messages) == 1
    with pytest.raises(AttributeError):
        asked.messages = ()


def test_known_texts_become_segments_but_in_what_a_model_said():
    segmenter = AutoSegmenter()
    segmenter.add(A)
    prompt = Prompt().system(f"Read: {A}").user(A).assistant(A).user("Where?", Segment("x"))
    cut = prompt.segmented(segmenter).to_messages()
    part = {"type": "segment", "text": A}
    assert cut[0]["content"] == [{"type": "text", "text": "Read: "}, part]
    assert cut[1]["content"] == [part]
    assert cut[2:] == prompt.to_messages()[2:]


PIECES = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=9),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=9).map(Segment),
)


@given(st.lists(st.lists(PIECES, min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_wire_takes_it_and_every_character_is_there(messages):
    prompt = Prompt()
    for pieces in messages:
        prompt = prompt.user(*pieces)
    request = parse(ChatRequest, {"messages": prompt.to_messages()})
    for message, pieces in zip(request.messages, messages, strict=True):
        texts = [one if isinstance(one, str) else one.text for one in pieces]
        parts = message.content
        said = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        assert said == "".join(texts)
