"""Laws of the generator: a function of its seed, pools disjoint, answers in their documents."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.demo.documents import EVENTS, SWITCHES
from hypic_sdk.demo.naming import is_held_out
from hypic_sdk.demo.questions import NOT_SAID, make_example
from hypic_sdk.demo.relations import EXAMPLE_SUBJECTS, RELATIONS, render, untaught_words
from hypic_sdk.demo.worlds import WorldSpec, make_world

seeds = st.integers(0, 2**31)


@given(seed=seeds, num_documents=st.integers(1, 6))
def test_an_example_is_a_function_of_its_seed(seed: int, num_documents: int) -> None:
    spec = WorldSpec(num_documents, 60, updates=2, events=1, switches=1)
    assert make_example(spec, seed) == make_example(spec, seed)


@given(seed=seeds, held=st.booleans())
def test_every_answer_stands_in_its_gold_document(seed: int, held: bool) -> None:
    spec = WorldSpec(3, 80, held_names=held, held_statements=held, updates=2, events=1)
    example = make_example(spec, seed)
    for question in example.questions:
        if question.kind in ("one_hop", "latest"):
            gold = example.documents[question.gold[-1]].lower()
            assert question.answer.lower() in gold, question
        if question.kind == "not_said":
            assert question.answer == NOT_SAID


@given(seed=seeds, num_documents=st.integers(2, 8))
def test_the_last_turn_of_all_documents_wins(seed: int, num_documents: int) -> None:
    spec = WorldSpec(num_documents, 60, switches=2)
    world, documents = make_world(spec, seed)
    assert len(world.turned) == 2
    for switch in SWITCHES:
        if switch.question not in world.turned:
            continue
        sentences = {text.format(s=s): s for s in switch.states for text in switch.sentences}
        pattern = "|".join(re.escape(one) for one in sentences)
        found = [
            (place, sentences[hit.group()])
            for place, document in enumerate(documents)
            for hit in re.finditer(pattern, document)
        ]
        assert world.turned[switch.question] == (found[-1][1], found[-1][0])
        assert len({place for place, _ in found}) == len(found) > 1, "a turn a document"


@given(seed=seeds, num_documents=st.integers(1, 8))
def test_what_is_counted_since_a_reset_comes_behind_the_last_one(seed: int, num_documents: int):
    world, documents = make_world(WorldSpec(num_documents, 60, events=2, resets=True), seed)
    text = "\n".join(documents)
    assert world.since.keys() == world.counted.keys() != set()
    for number, wanted in world.since.items():
        event = EVENTS[number]
        assert event.reset in text
        pattern = "|".join(re.escape(one) for one in event.sentences)
        assert len(re.findall(pattern, text)) == world.counted[number]
        assert len(re.findall(pattern, text.rpartition(event.reset)[2])) == wanted


@given(seed=seeds, held=st.booleans())
def test_names_come_from_one_pool_only(seed: int, held: bool) -> None:
    world, _ = make_world(WorldSpec(3, 80, held_names=held), seed)
    for entity in world.entities:
        proper = entity.name.removeprefix("the ").split(" ")
        own = proper if entity.kind == "person" else proper[:1]
        assert all(is_held_out(word) == held for word in own), entity


@pytest.mark.parametrize("key", RELATIONS)
def test_every_phrasing_renders(key: str) -> None:
    relation = RELATIONS[key]
    for template in (*relation.statements, *relation.held_statements):
        sentence = render(template, "Ada", "Oslo")
        assert "Oslo" in sentence
        assert re.search(r"\{[spo]\}", template), f"{template!r} names no subject"
        assert not re.search(r"[{}]", sentence)
    for template in (*relation.questions, *relation.held_questions):
        assert "{v}" not in template
        assert "Ada" in render(template, "Ada", "")


@pytest.mark.parametrize("key", RELATIONS)
def test_visitors_are_shown_sentences_that_name_their_subject_once(key: str) -> None:
    """As documents do: "Ada spends her free time", not "Ada spends Ada's free time"."""
    relation = RELATIONS[key]
    name = EXAMPLE_SUBJECTS[relation.subject_kind]
    for sentence in (relation.example_statement, relation.example_question):
        assert sentence.lower().count(name.lower()) == 1
    assert untaught_words(relation.example_question) == ()


def test_a_pronoun_is_no_untaught_word() -> None:
    assert untaught_words("What does Ada Lindqvist do in her free time?") == ()


@given(seed=seeds)
def test_a_later_statement_wins(seed: int) -> None:
    world, documents = make_world(WorldSpec(4, 60, updates=3), seed)
    for key in world.updated:
        value, gold = world.truth[key]
        assert value.lower() in documents[gold[-1]].lower()
        assert world.home[key[0]] <= gold[-1]
