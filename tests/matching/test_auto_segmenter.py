"""Known texts in prompts: found as by definition, whatever was added and forgotten before."""

from __future__ import annotations

import string
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.matching import AutoSegmenter, KnownText
from hypic_sdk.matching.text_index import ANCHOR_CHARS

A = "Ada lives in Norwick and keeps a parrot. " * 3 + "End of A"
B = "Tomas lives in Marlow Bay and plays the cello. " * 3 + "End of B"


def knowing(*texts: str, **options: int) -> AutoSegmenter:
    known = AutoSegmenter(**options)
    for text in texts:
        known.add(text)
    return known


def joined(cut) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in cut.parts)


def found(cut) -> list[str]:
    return [part.text for part in cut.parts if isinstance(part, KnownText)]


def test_texts_are_found_and_the_rest_stays():
    cut = knowing(A, B).cut(f"Read:\n{B}\n\n{A}\nWhere?")
    assert cut.parts == ("Read:\n", KnownText(B), "\n\n", KnownText(A), "\nWhere?")
    assert cut.num_segments == 2
    assert cut.content() == [
        {"type": "text", "text": "Read:\n"},
        {"type": "segment", "text": B},
        {"type": "text", "text": "\n\n"},
        {"type": "segment", "text": A},
        {"type": "text", "text": "\nWhere?"},
    ]


def test_a_prompt_that_is_one_text_or_none():
    assert knowing(A).cut(A).parts == (KnownText(A),)
    assert knowing(A).cut("").parts == ("",)
    assert knowing().cut("Where?").parts == ("Where?",)
    assert knowing(A).cut(A + A).parts == (KnownText(A), KnownText(A))


def test_what_differs_by_a_character_is_plain():
    for edited in (A.replace("parrot", "falcon"), A.replace(" ", "  "), A[:-1]):
        assert knowing(A).cut(edited).parts == (edited,)


def test_the_longest_text_that_begins_there_wins():
    longer = A + " and more"
    for texts in ((A, longer), (longer, A)):
        assert found(knowing(*texts).cut(f"{longer}. {A}")) == [longer, A]
    # what sorts between them is no obstacle
    between = A + " alias"
    assert found(knowing(A, between, longer).cut(A + " and less")) == [A]


def test_a_text_that_comes_later_is_found_beside_the_others():
    """It gets an index of its own, which must not hide or be hidden by the first."""
    known = knowing(A, *(f"{number} {B}" for number in range(40)))
    assert found(known.cut(A + " and more")) == [A]
    known.add(A + " and more")
    assert found(known.cut(A + " and more")) == [A + " and more"]
    known.discard(A + " and more")
    assert found(known.cut(A + " and more")) == [A]


def test_short_texts_are_not_kept():
    known = AutoSegmenter()
    assert known.add("the") is None
    assert known.add(A) == KnownText(A)
    assert (len(known), A in known, "the" in known) == (1, True, False)


def test_ids_are_kept_when_a_text_comes_again():
    known = AutoSegmenter()
    known.add(A, "seg_a")
    known.add(A)
    assert known.cut(A).content() == [{"type": "segment", "segment_id": "seg_a", "text": A}]


def test_the_oldest_are_forgotten():
    texts = [f"{number} {A}" for number in range(4)]
    known = knowing(*texts[:3], max_texts=3)
    assert found(known.cut(texts[1])) == [texts[1]]
    known.add(texts[0])
    known.add(texts[3])
    assert [text in known for text in texts] == [True, False, True, True]
    assert found(known.cut(texts[1])) == []
    known.discard("never there")
    assert len(known) == 3
    known = knowing(*texts, max_text_chars=2 * len(texts[0]))
    assert [text in known for text in texts] == [False, False, True, True]


def test_a_text_that_an_index_still_holds_is_forgotten_all_the_same():
    """A large index is not made again for one text; what it finds may be known no longer."""
    texts = [f"{number:02} {B}" for number in range(40)]
    known = knowing(A + " and more", A, *texts, max_texts=42)
    assert found(known.cut(A + " and more")) == [A + " and more"]
    known.add(f"new {B}")
    assert found(known.cut(A + " and more")) == [A]
    assert len(known._indexes) == 2
    known.add(f"newer {B}")
    assert found(known.cut(A + " and more")) == []
    # when most of it is forgotten, it is made again
    for number in range(50):
        known.add(f"newest {number:02} {B}")
    known.cut(A)
    assert sum(len(index.texts) for index in known._indexes) == 42


def test_nothing_keeps_a_text_that_was_discarded():
    known = knowing(A, B)
    known.cut(A)
    known.discard(A)
    assert found(known.cut(A + B)) == [B]
    assert A not in repr([index.texts for index in known._indexes])
    known.clear()
    assert (len(known), known.cut(B).parts) == (0, (B,))


@pytest.mark.parametrize("caps", [{"max_prompt_chars": 100}, {"max_tries": 1}])
def test_over_a_cap_a_prompt_stays_whole_and_it_is_told(caps):
    cut = knowing(A, B, **caps).cut(f"{A}\n{B}")
    assert (cut.parts, cut.is_capped) == ((f"{A}\n{B}",), True)


def test_threads_may_add_and_cut_at_once():
    known, wrong = AutoSegmenter(), []
    texts = [f"{number} {A}" for number in range(200)]

    def work(some: list[str]) -> None:
        for text in some:
            known.add(text)
            if found(known.cut(text)) != [text]:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(texts[at::4],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(known) == 200


HEAD = string.ascii_letters[:ANCHOR_CHARS]
TAILS = st.text(alphabet="ab\u00e9\U0001f642", max_size=5)
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "discard", "cut"]), st.lists(TAILS, max_size=6)), max_size=10
)


@given(STEPS, st.lists(st.one_of(TAILS, TAILS.map(HEAD.__add__)), max_size=8))
def test_cuts_are_those_of_the_definition_after_any_history(steps, pieces):
    """Texts begin alike and hold each other; indexes grow, are joined and are made again."""
    known, texts = AutoSegmenter(min_chars=ANCHOR_CHARS), set()
    prompt = "".join(pieces)
    for step, tails in [*steps, ("cut", [])]:
        for text in (HEAD + tail for tail in tails):
            if step == "add":
                known.add(text)
                texts.add(text)
            elif step == "discard":
                known.discard(text)
                texts.discard(text)
        if step == "cut":
            cut = known.cut(prompt)
            assert joined(cut) == prompt
            assert found(cut) == list(by_definition(prompt, texts))


@given(st.integers(1, 6), st.lists(st.integers(0, 15), max_size=30))
def test_forgetting_for_room_leaves_the_last_ones(max_texts, numbers):
    known, order = AutoSegmenter(max_texts=max_texts), {}
    for number in numbers:
        text = f"{number:2} {A}"
        known.add(text)
        order.pop(text, None)
        order[text] = None
        kept = list(order)[-max_texts:]
        assert found(known.cut("\n".join(order))) == [one for one in order if one in kept]


def by_definition(prompt: str, texts: set[str]):
    start = 0
    while start < len(prompt):
        here = [text for text in texts if prompt.startswith(text, start)]
        if here:
            yield max(here, key=len)
        start += len(max(here, key=len)) if here else 1
