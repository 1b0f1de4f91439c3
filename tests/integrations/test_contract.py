"""Known texts, and prompts cut at them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.integrations.contract import (
    ANCHOR_CHARS,
    KnownText,
    SegmentRegistry,
    cache_details,
    report_values,
)
from hypic_sdk.wire.report import PromptTokensDetails, Usage

A = "Ada lives in Norwick and keeps a parrot. " * 3 + "End of A"
B = "Tomas lives in Marlow Bay and plays the cello. " * 3 + "End of B"


def registry(*texts: str, **options: int) -> SegmentRegistry:
    known = SegmentRegistry(**options)
    for text in texts:
        known.add(text)
    return known


def joined(cut) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in cut.parts)


def found(cut) -> list[str]:
    return [part.text for part in cut.parts if isinstance(part, KnownText)]


def test_texts_are_found_and_the_rest_stays():
    cut = registry(A, B).cut(f"Read:\n{B}\n\n{A}\nWhere?")
    assert cut.parts == ("Read:\n", KnownText(B), "\n\n", KnownText(A), "\nWhere?")
    assert cut.num_segments == 2


def test_a_prompt_that_is_one_text_or_none():
    assert registry(A).cut(A).parts == (KnownText(A),)
    assert registry(A).cut("").parts == ("",)
    assert registry().cut("Where?").parts == ("Where?",)
    assert registry(A).cut(A + A).parts == (KnownText(A), KnownText(A))


def test_an_edited_text_is_plain():
    edited = A.replace("parrot", "falcon")
    assert registry(A).cut(edited).parts == (edited,)


def test_outer_whitespace_stays_in_the_prompt():
    known = registry(f"\n {A} \n")
    assert A in known
    assert known.cut(f"x \n{A}\n").parts == ("x \n", KnownText(A), "\n")


def test_the_longest_text_that_begins_there_wins():
    longer = A + " and more"
    for texts in ((A, longer), (longer, A)):
        assert found(registry(*texts).cut(f"{longer}. {A}")) == [longer, A]
    # what sorts between them is no obstacle
    between = A + " alias"
    assert found(registry(A, between, longer).cut(A + " and less")) == [A]


def test_short_texts_are_not_kept():
    known = SegmentRegistry()
    assert known.add("the") is None
    assert known.add(A) == KnownText(A)
    assert len(known) == 1


def test_ids_are_kept_when_a_text_comes_again():
    known = SegmentRegistry()
    known.add(A, "seg_a")
    known.add(A)
    [part] = known.cut(A).parts
    assert part.part() == {"type": "segment", "segment_id": "seg_a", "text": A}
    assert KnownText(B).part() == {"type": "segment", "text": B}


def test_the_oldest_are_forgotten():
    texts = [f"{number} {A}" for number in range(4)]
    known = registry(*texts[:3], max_texts=3)
    known.add(texts[0])
    known.add(texts[3])
    assert [text in known for text in texts] == [True, False, True, True]
    known.discard(texts[0])
    known.discard("never there")
    assert found(known.cut(texts[0])) == []
    assert len(known) == 2


@pytest.mark.parametrize("caps", [{"max_prompt_chars": 100}, {"max_tries": 1}])
def test_over_a_cap_a_prompt_stays_whole_and_it_is_told(caps):
    cut = registry(A, B, **caps).cut(f"{A}\n{B}")
    assert cut.parts == (f"{A}\n{B}",)
    assert report_values(None, [cut]) == {"auto_segments": 0, "auto_segment_capped": True}


WORDS = st.text(alphabet="ab", min_size=1, max_size=6)


@given(
    st.lists(WORDS, max_size=12),
    st.lists(st.one_of(WORDS, st.integers(0, 11)), max_size=8),
)
def test_the_parts_join_to_the_prompt_and_nothing_is_overlooked(tails, pieces):
    """Against the definition, with texts that begin alike and hold each other."""
    head = string.ascii_letters[:ANCHOR_CHARS]
    texts = [head + tail for tail in tails]
    prompt = "".join(
        piece if isinstance(piece, str) else texts[piece] if piece < len(texts) else ""
        for piece in pieces
    )
    cut = registry(*texts, min_chars=ANCHOR_CHARS).cut(prompt)
    assert joined(cut) == prompt
    assert found(cut) == list(by_definition(prompt, texts))


def by_definition(prompt: str, texts: list[str]):
    start = 0
    while start < len(prompt):
        here = [text for text in texts if prompt.startswith(text, start)]
        if here:
            yield max(here, key=len)
        start += len(max(here, key=len)) if here else 1


def test_details_are_disjoint_and_within_the_prompt():
    details = PromptTokensDetails(cached_tokens=70, cache_write_tokens=50)
    assert cache_details(Usage(prompt_tokens=100, prompt_tokens_details=details)) == (70, 30)
