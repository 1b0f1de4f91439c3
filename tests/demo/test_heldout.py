"""What is held out is decided by a checksum, and training can not write it by any road."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.demo import heldout
from hypic_sdk.demo.documents import Fact, Writer
from hypic_sdk.demo.grid_data import KERNELS
from hypic_sdk.demo.heldout import apart, bare, core, held_out, roughened
from hypic_sdk.demo.naming import PRONOUNS, Entity, Namer
from hypic_sdk.demo.phrasings import QUESTION_FRAMES, STATEMENT_FRAMES, cross
from hypic_sdk.demo.questions import ASK_OPENERS, make_questions
from hypic_sdk.demo.relations import (
    EXAMPLE_SUBJECTS,
    HELD_QUESTION_FRAMES,
    HELD_STATEMENT_FRAMES,
    RELATIONS,
    fill,
    possessive,
    render,
    untaught_words,
)
from hypic_sdk.demo.worlds import WorldSpec, make_world
from hypic_sdk.demo.wrappers import CLOSERS, OPENERS, UPDATE_OPENERS

sentences = st.lists(st.text("abc {}s", min_size=1, max_size=8), min_size=3, unique=True)


@given(pool=sentences, share=st.floats(0, 1), least=st.integers(0, 3))
def test_the_rule(pool: list[str], share: float, least: int) -> None:
    held = held_out("statement", "age", pool, share, least)
    scores = {}
    for template in pool:
        digest = hashlib.sha256(f"{heldout.SEED}|statement|age|{template}".encode()).hexdigest()
        scores[template] = int(digest[:16], 16) / 2**64
    under = {template for template, score in scores.items() if score < share}
    assert under <= set(held)
    assert len(held) == max(least, len(under))
    others = set(pool) - set(held)
    assert not others or not held or max(scores[t] for t in held) <= min(scores[t] for t in others)


@given(pool=sentences, order=st.randoms(use_true_random=False))
def test_the_rule_minds_no_order(pool: list[str], order: random.Random) -> None:
    mixed = list(pool)
    order.shuffle(mixed)
    assert set(held_out("a", "b", pool, 0.3, 1)) == set(held_out("a", "b", mixed, 0.3, 1))


@pytest.mark.parametrize("key", RELATIONS)
def test_training_and_held_out_phrasings_are_apart(key: str) -> None:
    relation = RELATIONS[key]
    pairs = (
        (relation.statements, relation.held_statements),
        (relation.questions, relation.held_questions),
    )
    for seen, held in pairs:
        made = {form for template in seen for form in roughened(template)}
        assert not made & {bare(template) for template in held}
    assert len(relation.held_statements.own) >= heldout.LEAST_STATEMENTS
    assert len(relation.held_questions.own) >= heldout.LEAST_QUESTIONS


@pytest.mark.parametrize("key", RELATIONS)
def test_a_held_out_frame_is_crossed_with_no_noun_in_training(key: str) -> None:
    relation = RELATIONS[key]
    assert not set(cross(key, HELD_STATEMENT_FRAMES)) & set(relation.statements)
    assert not set(cross(key, HELD_QUESTION_FRAMES)) & set(relation.questions)
    assert set(cross(key, HELD_STATEMENT_FRAMES)) == set(relation.held_statements.framed)


def test_the_shares_are_as_said() -> None:
    own = sum(len(r.statements.own) + len(r.held_statements.own) for r in RELATIONS.values())
    held = sum(len(r.held_statements.own) for r in RELATIONS.values())
    # a binomial draw: four standard errors of 12 % over some two thousand sentences are 3 points
    assert abs(held / own - heldout.OWN_SHARE) < 0.03
    num_frames = len(STATEMENT_FRAMES.split("|")) + len(QUESTION_FRAMES.split("|"))
    assert len(HELD_STATEMENT_FRAMES) + len(HELD_QUESTION_FRAMES) > 0.05 * num_frames


def test_apart_drops_what_roughening_could_turn_into_a_held_out_sentence() -> None:
    held = ("{s} is now in the {v}.", "the home {p} family has: {v}.", "{o} keeps a {v}.")
    training = (
        "{s} is in the {v}.",
        "the home that {p} family has: {v}.",
        "{s} keeps {a}.",
        "{s} sits in the {v}.",
    )
    assert apart(training, held) == ("{s} sits in the {v}.",)


def unwrapped(sentence: str) -> str:
    """Take off what may stand before and after a statement, and its capital."""
    text = sentence[:1].lower() + sentence[1:]
    text = next(
        (text.removeprefix(o) for o in (*OPENERS, *UPDATE_OPENERS) if text.startswith(o)), text
    )
    text = text.removesuffix(".")
    return next((text.removesuffix(c) for c in CLOSERS if text.endswith(c)), text)


def readings(template: str, entity: Entity, value: str) -> set[str]:
    """All bare forms of a statement: by name, by short name, by pronoun, and name then pronoun."""
    named = (entity.name, possessive(entity.name), entity.name)
    short = (entity.short, possessive(entity.short), entity.short)
    pronouns = PRONOUNS[entity.pronoun]
    forms = [named, short, pronouns]
    for first in range(3):
        forms.append(
            tuple(
                n if i == first else p for i, (n, p) in enumerate(zip(named, pronouns, strict=True))
            )
        )  # type: ignore[arg-type]
    return {bare(fill(template, *form, value)) for form in forms}


@given(seed=st.integers(0, 2**31), key=st.sampled_from(sorted(RELATIONS)), update=st.booleans())
def test_training_writes_no_held_out_statement(seed: int, key: str, update: bool) -> None:
    rng = random.Random(seed)
    namer = Namer(rng)
    relation = RELATIONS[key]
    entity, value = namer.entity(relation.subject_kind), namer.value(relation.value_kind)
    writer = Writer(rng)
    held = {f for t in relation.held_statements for f in readings(t, entity, value)}
    for _ in range(20):
        sentence = writer.fact(Fact(entity, key, value, update))
        assert bare(unwrapped(sentence)) not in held
        assert bare(sentence) not in held


@given(seed=st.integers(0, 2**31))
def test_training_asks_no_held_out_question(seed: int) -> None:
    world, documents = make_world(WorldSpec(2, 80, num_questions=8), seed)
    for question in make_questions(world, documents):
        if not question.relation or question.kind == "two_hop":
            continue
        text = next(
            (question.text.removeprefix(o) for o in ASK_OPENERS if question.text.startswith(o)),
            question.text,
        )
        for template in RELATIONS[question.relation].held_questions:
            for entity in world.entities:
                assert bare(text) not in readings(template, entity, "")


@pytest.mark.parametrize("key", RELATIONS)
def test_a_held_out_cell_is_a_new_sentence_of_known_words(key: str) -> None:
    relation = RELATIONS[key]
    for held, seen in (
        (relation.held_statements.grid, relation.statements.grid),
        (relation.held_questions.grid, relation.questions.grid),
    ):
        assert held
        assert not {bare(cell) for cell in held} & {bare(cell) for cell in seen}
        assert all(relation.knows(cell) for cell in held)
    assert not relation.knows("{s} was zapped into {v}.")


@pytest.mark.parametrize("key", RELATIONS)
def test_every_verb_phrase_and_construction_is_trained(key: str) -> None:
    _, of_subject, of_value = KERNELS[key]
    seen = RELATIONS[key].statements.grid
    for kernel in of_subject.split("|"):
        verb, complement = kernel.split("~")
        assert any(verb in cell and complement in cell for cell in seen), kernel
    for kernel in of_value.split("|"):
        assert any(kernel in cell for cell in seen), kernel


def test_a_wide_draw_takes_from_all_parts() -> None:
    rng = random.Random(1)
    pool = RELATIONS["age"].statements
    drawn = {pool.draw(rng, "wide") for _ in range(300)}
    assert all(drawn & set(part) for part in pool.parts)
    assert not {pool.draw(rng) for _ in range(300)} & (set(pool.grid) - {*pool.own, *pool.framed})


@given(template=st.sampled_from(sorted({t for r in RELATIONS.values() for t in r.statements})))
def test_the_cheap_look_misses_no_clash(template: str) -> None:
    assert {core(form) for form in roughened(template)} == {core(bare(template))}


@pytest.mark.parametrize("part", ["own", "framed", "grid"])
@pytest.mark.parametrize("key", RELATIONS)
def test_a_part_is_drawn_from_alone(key: str, part: str) -> None:
    rng = random.Random(1)
    for pool in (RELATIONS[key].statements, RELATIONS[key].held_statements):
        wanted = set(getattr(pool, part))
        drawn = {pool.draw(rng, part) for _ in range(200)}  # type: ignore[arg-type]
        assert drawn <= wanted
        other = {pool.draw(rng) for _ in range(200)}
        assert other & set(pool.own)
        assert other & set(pool.framed)


@pytest.mark.parametrize("key", sorted(RELATIONS))
def test_no_taught_sentence_has_an_untaught_word(key: str) -> None:
    relation = RELATIONS[key]
    subject = EXAMPLE_SUBJECTS[relation.subject_kind]
    for template in relation.questions:
        assert untaught_words(render(template, subject, "Orrin")) == ()


def test_untaught_words_are_named_once_and_in_order() -> None:
    text = "Zzyzx flomps zzyzx: who qwerts Ann Lee's 12 mayor, or flomps?"
    assert untaught_words(text) == ("flomps", "zzyzx", "qwerts")
    assert untaught_words("") == ()
