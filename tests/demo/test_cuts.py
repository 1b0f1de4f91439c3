"""Laws of sentences that a border cuts: halves, whose value it is, and the seam that joins them."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.demo import cuts, reader_path
from hypic_sdk.demo.documents import Fact, Writer
from hypic_sdk.demo.evaluation_data import ARMS, make_prompt
from hypic_sdk.demo.prompts import HEAD_TOKENS, PieceTokenizer, PromptEncoder, interior_mask
from hypic_sdk.demo.questions import Example, cut
from hypic_sdk.demo.relations import RELATIONS
from hypic_sdk.demo.training_data import draw_spec, make_lexicon, stages
from hypic_sdk.demo.worlds import Mix, World, WorldSpec, make_world

TOKENIZER = PieceTokenizer(reader_path())
ENCODER = PromptEncoder(TOKENIZER)
LEXICON = make_lexicon(reader_path(), ("The clerk noted that hour in the green paper.",))
seeds = st.integers(0, 2**31)
specs = st.builds(
    WorldSpec,
    num_documents=st.integers(2, 7),
    document_tokens=st.sampled_from((20, 60, 140)),
    held_names=st.booleans(),
    held_statements=st.booleans(),
    part=st.sampled_from(("all", "own", "framed", "grid", "wide")),
    filler_share=st.sampled_from((0.0, 0.3)),
    updates=st.integers(0, 3),
    events=st.integers(0, 1),
    switches=st.integers(0, 1),
    cuts=st.integers(1, 4),
)


def written(spec: WorldSpec, seed: int) -> tuple[World, tuple[str, ...], list[str]]:
    """A world, its documents, and its cut sentences as written, marks and all."""
    sentences: list[str] = []
    plain = Writer.fact

    def recorded(writer: Writer, fact: Fact) -> str:
        sentences.append(plain(writer, fact))
        return sentences[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "fact", recorded)
        world, documents = make_world(spec, seed, LEXICON)
    return world, documents, [one for one in sentences if cuts.MARK in one]


@given(spec=specs, seed=seeds)
def test_the_halves_of_a_cut_sentence_are_the_sentence(spec: WorldSpec, seed: int) -> None:
    world, documents, sentences = written(spec, seed)
    assert len(sentences) == len(world.cut) <= min(spec.cuts, spec.num_documents - 1)
    borders = sorted(world.truth[key][1] for key in world.cut)
    assert cuts.MARK not in "".join(documents)
    for (ending, beginning), sentence in zip(borders, sentences, strict=True):
        first, second = cuts.halves(sentence)
        assert f"{first} {second}" == sentence.replace(cuts.MARK, "")
        assert first, second
        assert documents[ending].endswith(first)
        assert documents[beginning].startswith(second), "and no heading stands before it"


@given(spec=specs, seed=seeds)
def test_the_value_of_a_cut_sentence_is_in_the_head_of_the_next_document(
    spec: WorldSpec, seed: int
) -> None:
    world, documents = make_world(spec, seed, LEXICON)
    for key in world.cut:
        value, (ending, beginning) = world.truth[key]
        assert beginning == ending + 1
        (ids,) = TOKENIZER.callers([documents[beginning]])
        assert TOKENIZER.decode(ids[:HEAD_TOKENS]).startswith(value)


@given(spec=specs, seed=seeds)
def test_a_question_on_a_cut_sentence_hangs_on_both_documents(spec: WorldSpec, seed: int) -> None:
    world, _ = make_world(spec, seed)
    question = cut(world)
    assert (question is None) == (not world.cut)
    assert not world.cut & world.updated, "a later statement would win"
    if question is not None:
        found = [key for key in world.cut if world.truth[key] == (question.answer, question.gold)]
        assert question.relation in {relation for _, relation in found}
        assert question.kind == "cut"


@given(spec=specs, seed=seeds)
def test_cuts_move_facts_and_change_none(spec: WorldSpec, seed: int) -> None:
    world, documents = make_world(spec, seed)
    plain, uncut = make_world(replace(spec, cuts=0), seed)
    assert not plain.cut
    assert len(documents) == len(uncut)
    for name in ("entities", "home", "updated", "counted", "since", "turned"):
        assert getattr(world, name) == getattr(plain, name)
    assert list(world.truth) == list(plain.truth)
    for key, (value, gold) in world.truth.items():
        place = gold[:1] if key in world.cut else gold
        assert plain.truth[key] == (value, place)


def test_nearly_every_border_can_cut_and_both_ends_of_a_document() -> None:
    worlds = [make_world(WorldSpec(3, 80, cuts=2), seed)[0] for seed in range(200)]
    assert sum(len(world.cut) for world in worlds) > 0.9 * 400
    assert not make_world(WorldSpec(1, 80, cuts=2), 0)[0].cut, "one document has no neighbour"


@pytest.mark.parametrize("key", RELATIONS)
def test_every_relation_has_statements_that_can_be_cut(key: str) -> None:
    relation = RELATIONS[key]
    for held, pool in ((False, relation.statements), (True, relation.held_statements)):
        assert cuts.can_be_cut(relation, "Oslo", held)
        assert not cuts.can_be_cut(relation, "Oslo Works", held)
        for template in cuts.late(pool):
            before, after = cuts.halves(cuts.marked(template, "Oslo"))
            assert re.search(r"\{[spo]\}", before), "whose value it is stands in the first half"
            assert after.startswith("{v}")
            assert not re.search(r"\{[spoa]\}", after)


def test_an_article_stays_in_the_first_half() -> None:
    assert cuts.halves(cuts.marked("{s} is {a}.", "actor")) == ("{s} is an", "{v}.")


@given(seed=seeds)
def test_a_mix_without_cuts_draws_as_it_always_did(seed: int) -> None:
    stage = stages(32768, is_grown=True)[0]
    one, other = random.Random(seed), random.Random(seed)
    assert draw_spec(one, stage, Mix()).cuts == 0
    assert draw_spec(other, stage, Mix(cuts=(1, 2))).cuts == one.choice((1, 2))
    assert one.getstate() == other.getstate()


def value_tokens(example: Example, place: int) -> slice:
    """Where the answer stands at the beginning of a document, in the encoded prompt."""
    one = ENCODER.encode(example)
    start = int(np.flatnonzero(one.documents == place)[0])
    (ids,) = TOKENIZER.callers([example.documents[place]])
    answer = example.questions[0].answer
    size = next(n for n in range(9) if TOKENIZER.decode(ids[:n]).startswith(answer))
    return slice(start, start + size)


@given(index=st.integers(0, 400), num_documents=st.sampled_from((2, 4, 8)))
def test_only_a_head_sees_whose_value_a_document_begins_with(
    index: int, num_documents: int
) -> None:
    arm = next(arm for arm in ARMS if arm.kind == "cut")
    example = make_prompt(arm, num_documents, index)
    (question,) = example.questions
    assert len(question.gold) == 2
    where = value_tokens(example, question.gold[1])
    one = ENCODER.encode(example)
    assert TOKENIZER.decode(one.tokens[where].tolist()) == question.answer
    assert not interior_mask(one)[where].any(), "live with the default seam"
    assert interior_mask(one, head=0, least=0)[where].all(), "kept without a head"
