"""Deltas hold finished characters only, and join to the text of all ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.prompt.incremental import IncrementalDecoder
from tests.prompt import tiny


def deltas(name: str, pushes: list[list[int]]) -> list[str]:
    decoder = IncrementalDecoder(tiny.tokenizer(name))
    return [*map(decoder.push, pushes), decoder.finish()]


@pytest.mark.parametrize("name", tiny.FILES)
@given(data=st.data())
def test_any_ids_join_to_their_text(name, data):
    """Random ids: broken UTF-8, special tokens, ids without a token."""
    size = tiny.tokenizer(name).vocab_size
    pushes = data.draw(st.lists(st.lists(st.integers(0, size + 2), max_size=4), max_size=12))
    ids = [id_ for push in pushes for id_ in push]
    assert "".join(deltas(name, pushes)) == tiny.tokenizer(name).decode(ids)


@pytest.mark.parametrize("name", tiny.LOSSLESS)
@given(text=tiny.texts)
def test_token_by_token_no_character_is_torn(name, text):
    ids = tiny.tokenizer(name).encode_text(text)
    parts = deltas(name, [[id_] for id_ in ids])
    assert "".join(parts) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


def test_text_comes_as_soon_as_it_is_sure():
    """Else holding everything back until the end would pass."""
    ids = tiny.tokenizer().encode_text("ab 🙂 cd")
    parts = deltas("byte_level", [[id_] for id_ in ids])
    assert parts[0] != ""
    assert "🙂" in "".join(parts[:-1])
    assert parts[-1] == ""


def test_a_run_of_byte_tokens_is_said_when_it_has_ended():
    """One byte more would turn the whole run into replacement characters."""
    tokenizer = tiny.tokenizer("sentence_piece")
    ids = tokenizer.encode_text("日a")
    parts = deltas("sentence_piece", [[id_] for id_ in ids])
    assert parts == ["", "", "", "日a", ""]


def test_a_broken_sequence_is_said_at_the_end():
    tokenizer = tiny.tokenizer()
    ids = tokenizer.encode_text("a🙂")[:-1]
    parts = deltas("byte_level", [[id_] for id_ in ids])
    assert "".join(parts[:-1]) == "a"
    assert parts[-1] == "\ufffd"


@given(text=st.text("ab 日🙂", min_size=200, max_size=300))
def test_the_window_stays_short(text):
    """A reply of any length costs each token the decoding of a few, not of all before it."""
    tokenizer = tiny.tokenizer()

    class Counting:
        longest = 0

        def decode(self, ids):
            self.longest = max(self.longest, len(ids))
            return tokenizer.decode(ids)

        def ends_in_byte(self, ids):
            return tokenizer.ends_in_byte(ids)

    counting = Counting()
    decoder = IncrementalDecoder(counting)
    for id_ in tokenizer.encode_text(text):
        decoder.push([id_])
    # a token may hold the end of one character and the start of the next, so a few characters wait
    assert counting.longest <= 30
