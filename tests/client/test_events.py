"""Server-sent events, cut anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.client.events import EventParser, ServerEvent

STREAM = (
    ": a comment\n\n"
    "data: one\n\n"
    "event: progress\r\ndata: zwei 🙂\r\n\r\n"
    "data:three\ndata: lines\nid: 7\n\n"
    "event: alone\n\n"
    "data: [DONE]\n\n"
)
EVENTS = [
    ServerEvent("one"),
    ServerEvent("zwei 🙂", "progress"),
    ServerEvent("three\nlines"),
    ServerEvent("[DONE]"),
]


@given(st.lists(st.integers(0, len(STREAM.encode())), max_size=12))
def test_events_do_not_depend_on_the_cuts(cuts):
    raw = STREAM.encode()
    borders = [0, *sorted(cuts), len(raw)]
    parser = EventParser()
    received = [
        event
        for start, stop in itertools.pairwise(borders)
        for event in parser.feed(raw[start:stop])
    ]
    assert received == EVENTS


@pytest.mark.parametrize("raw", [b"", b"data: x", b"data: x\n"])
def test_an_unfinished_event_is_none(raw):
    assert EventParser().feed(raw) == []
