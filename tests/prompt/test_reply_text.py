"""Stop strings cut exactly, however the text is cut into deltas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.prompt.reply_text import ReplyText, StopStrings
from tests.prompt import tiny

stop_lists = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4)


def stopped_text(text: str, stops: list[str], num_skipped: int = -1) -> tuple[str, bool]:
    """The definition: read character by character until the text ends in a stop string.

    Args:
        num_skipped: of a beginning in which none is looked for.
    """
    for end in range(num_skipped + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(deltas=st.lists(st.text("ab\nc", max_size=5), max_size=8), stops=stop_lists)
def test_any_deltas_give_the_text_of_the_definition(deltas, stops):
    cutter = StopStrings(stops)
    got = "".join(map(cutter.push, deltas))
    got += cutter.finish()
    assert (got, cutter.stopped) == stopped_text("".join(deltas), stops)


@given(deltas=st.lists(st.text("ab\nc", max_size=5), max_size=8), stops=stop_lists)
def test_what_is_handed_out_is_never_taken_back(deltas, stops):
    """Each prefix of the stream has said a prefix of the final text."""
    final, _ = stopped_text("".join(deltas), stops)
    cutter = StopStrings(stops)
    said = ""
    for delta in deltas:
        said += cutter.push(delta)
        assert final.startswith(said)


@given(deltas=st.lists(st.text("ab\nc", max_size=5), max_size=8), stops=stop_lists)
def test_no_more_is_held_back_than_could_become_a_stop(deltas, stops):
    cutter = StopStrings(stops)
    said, text = "", ""
    for delta in deltas:
        said += cutter.push(delta)
        text += delta
        if cutter.stopped:
            return
        held = text[len(said) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@given(
    early=st.lists(st.text("ab\nc", max_size=5), max_size=4),
    later=st.lists(st.text("ab\nc", max_size=5), max_size=4),
    stops=stop_lists,
)
def test_a_stop_may_begin_but_not_end_where_none_is_looked_for(early, later, stops):
    cutter = StopStrings(stops)
    got = "".join(cutter.push(delta, looks=False) for delta in early)
    got += "".join(map(cutter.push, later)) + cutter.finish()
    text = "".join(early + later)
    assert (got, cutter.stopped) == stopped_text(text, stops, len("".join(early)))


@given(text=tiny.texts, stop=tiny.full_texts, min_tokens=st.integers(0, 30))
def test_no_stop_is_found_before_min_tokens(text, stop, min_tokens):
    tokenizer = tiny.tokenizer()
    ids = tokenizer.encode_text(text)
    reply = ReplyText(tokenizer, [stop], min_tokens=min_tokens)
    got = "".join(reply.push([id_]) for id_ in ids)
    if len(ids) <= min_tokens:
        assert (got + reply.finish(), reply.stopped) == (text, False)
    elif "\ufffd" not in text:
        skipped = tokenizer.decode(ids[:min_tokens]).rstrip("\ufffd")
        found = stopped_text(text, [stop], len(skipped) if min_tokens else -1)
        assert (got + reply.finish(), reply.stopped) == found


def test_without_stop_strings_nothing_is_held_back():
    cutter = StopStrings([])
    assert cutter.push("abc") == "abc"
    assert cutter.finish() == ""


def test_an_empty_stop_string_stops_nothing():
    cutter = StopStrings([""])
    assert cutter.push("abc") == "abc"
    assert not cutter.stopped


@pytest.mark.parametrize("name", ["byte_level", "sentence_piece"])
@given(text=tiny.texts, stop=tiny.full_texts)
def test_tokens_to_text_with_a_stop(name, text, stop):
    tokenizer = tiny.tokenizer(name)
    reply = ReplyText(tokenizer, [stop])
    got = "".join(reply.push([id_]) for id_ in tokenizer.encode_text(text)) + reply.finish()
    assert (got, reply.stopped) == stopped_text(text, [stop])


def test_a_stop_may_be_complete_only_when_the_reply_ends():
    """The last character was held back as unfinished; the stop is found in what is flushed."""
    tokenizer = tiny.tokenizer("sentence_piece")
    reply = ReplyText(tokenizer, ["日"])
    assert "".join(reply.push([id_]) for id_ in tokenizer.encode_text("a日")) == "a"
    assert reply.finish() == ""
    assert reply.stopped
