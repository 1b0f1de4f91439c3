"""Random conversations: system, user, assistant and tool messages, with segments in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st

from hypic_sdk.prompt.pieces import CallerText, Message
from hypic_sdk.prompt.segment import segment_id
from tests.prompt import tiny

REASONING_PLACE = 99
"""Where a reply's reasoning is said to stand: after all its texts."""

plain_words = st.lists(st.sampled_from(["town", "Ada", "river", "日本", "12"]), min_size=1).map(
    " ".join
)
"""Texts that no template changes: no white space at the ends, nothing that looks like a tag."""


def text(content: str, *, segment: bool = False) -> CallerText:
    """One text of a caller."""
    return CallerText(content, segment_id(content) if segment else None)


def message(role: str, *texts: CallerText | str, **extra: object) -> Message:
    """A message of texts; strings are plain ones."""
    parts = tuple(one if isinstance(one, CallerText) else text(one) for one in texts)
    return Message(role, parts, extra=extra)


def numbered(messages: Sequence[Message]) -> list[Message]:
    """The same messages with each text told where it stands."""
    return [
        replace(
            one,
            content=tuple(
                replace(part, message_index=index, content_index=place)
                for place, part in enumerate(one.content)
            ),
            reasoning=one.reasoning
            and replace(one.reasoning, message_index=index, content_index=REASONING_PLACE),
        )
        for index, one in enumerate(messages)
    ]


short_texts = st.lists(tiny.fragments, min_size=1, max_size=2).map("".join).filter(bool)
"""Texts of a caller, not empty; a conversation has many."""

# a conversation is a large draw, and each has several texts in it
few = settings(max_examples=40)


@st.composite
def turns(draw: st.DrawFn, contents: st.SearchStrategy[str] = short_texts) -> list[Message]:
    """A conversation that asks for a reply: it ends with a user's or a tool's message."""

    def say(role: str) -> Message:
        parts = draw(
            st.lists(st.tuples(contents, st.booleans()), min_size=1, max_size=3)
            if role != "assistant"
            else st.lists(st.tuples(contents, st.just(False)), min_size=1, max_size=1)
        )
        said = Message(role, tuple(text(part, segment=flag) for part, flag in parts))
        if role == "assistant" and draw(st.booleans()):
            return replace(said, reasoning=text(draw(contents)))
        return said

    messages = [say("system")] if draw(st.booleans()) else []
    messages.append(say("user"))
    for _ in range(draw(st.integers(0, 2))):
        messages.append(say("assistant"))
        messages.extend(say("tool") for _ in range(draw(st.integers(0, 2))))
        if draw(st.booleans()) or messages[-1].role == "assistant":
            messages.append(say("user"))
    return numbered(messages)
