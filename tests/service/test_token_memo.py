"""The same text is tokenised once, as long as there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.service.token_memo import TokenMemo


class Encoder:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> tuple[int, ...]:
        self.texts.append(text)
        return tuple(map(ord, text))


@given(texts=st.lists(st.text("abc", max_size=4)), budget_bytes=st.integers(0, 40))
def test_any_asks_give_what_tokenising_gives(texts, budget_bytes):
    memo = TokenMemo(Encoder(), budget_bytes=budget_bytes)
    for text in texts:
        assert memo.token_ids(segment_id(text), text) == tuple(map(ord, text))


def test_a_text_is_tokenised_once():
    encode = Encoder()
    memo = TokenMemo(encode)
    for text in ("ab", "c", "ab", "c"):
        memo.token_ids(segment_id(text), text)
    assert encode.texts == ["ab", "c"]


def test_the_least_recently_used_goes_first():
    encode = Encoder()
    memo = TokenMemo(encode, budget_bytes=8)  # two tokens
    for text in ("a", "b", "a", "c", "a", "b"):
        memo.token_ids(segment_id(text), text)
    assert encode.texts == ["a", "b", "c", "b"]


def test_a_text_larger_than_the_budget_is_not_kept():
    encode = Encoder()
    memo = TokenMemo(encode, budget_bytes=8)
    for text in ("a", "bbb", "bbb", "a"):
        memo.token_ids(segment_id(text), text)
    assert encode.texts == ["a", "bbb", "bbb"]
