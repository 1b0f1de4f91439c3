"""Questions on an invented world, and whole examples: documents with their questions.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypic_sdk.demo.documents import EVENTS
from hypic_sdk.demo.naming import PRONOUNS, Entity, Lexicon
from hypic_sdk.demo.relations import (
    RELATIONS,
    Relation,
    capitalise,
    fill,
    possessive,
    relations_of,
)
from hypic_sdk.demo.worlds import KINDS, NO_LEXICON, World, WorldSpec, make_world

NOT_SAID = "The documents do not say."
SYSTEM_TEXTS = (
    "Answer from the documents.",
    "Answer the question from the documents. Answer briefly.",
    "You are a careful reader. Use the documents only.",
    "You answer questions from the documents you are given.",
    "You are a helpful assistant.",
)
ASK_OPENERS = (
    "According to the documents, ",
    "Please tell me: ",
    "Say, ",
    "One question: ",
    "Quickly: ",
)
#: relation to the phrase that names its value, and the relations asked of that value
BRIDGES = {
    "works_for": ("the company that {s} works for", ("based_in", "led_by", "makes", "founded")),
    "born_in": ("the town where {s} was born", ("river", "mayor", "region", "known_for")),
    "lives_in": ("the town where {s} lives", ("river", "mayor", "region", "known_for")),
    "keeper": ("the person who keeps {s}", ("age", "job", "pet", "colour")),
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its one right answer, and where the answer stands."""

    text: str
    answer: str
    kind: str  # one_hop, latest, cut, two_hop, first, tally, since, turned or not_said
    relation: str = ""
    gold: tuple[int, ...] = ()  # indices of the documents that hold the answer
    known_words: bool = True  # whether training shows every word of statement and question


@dataclass(frozen=True, slots=True)
class Example:
    """Documents and questions on them."""

    system: str | None
    documents: tuple[str, ...]
    glue: tuple[str, ...]  # what follows each document
    questions: tuple[Question, ...]


def ask(
    world: World, relation: Relation, entity: Entity, subject: str | None = None
) -> tuple[str, str]:
    """Return a question about an entity, or what `subject` describes, and its template."""
    held = world.spec.held_questions
    templates = relation.held_questions if held else relation.questions
    if subject is not None:
        templates = templates.without("{p}")
    template = templates.draw(world.rng, world.spec.part)
    name = subject or entity.name
    genitive = possessive(name)
    if "{s}" in template and template.find("{s}") < template.find("{p}"):
        genitive = PRONOUNS[entity.pronoun][1]
    text = fill(template, name, genitive, name)
    if not held and world.rng.random() < 0.08:
        return world.rng.choice(ASK_OPENERS) + text, template
    return capitalise(text), template


def one_hop(world: World, key: tuple[str, str]) -> Question:
    """Ask for one stated fact."""
    entity = next(e for e in world.entities if e.name == key[0])
    value, gold = world.truth[key]
    kind = "latest" if key in world.updated else "cut" if key in world.cut else "one_hop"
    relation = RELATIONS[key[1]]
    text, template = ask(world, relation, entity)
    known = relation.knows(template) and relation.knows(world.said[key])
    return Question(text, value, kind, key[1], gold, known)


def not_said(world: World) -> Question | None:
    """Ask for something that no document states."""
    rng = world.rng
    if rng.random() < 0.35:
        entity = world.namer.entity(rng.choice(KINDS))
    else:
        entity = rng.choice(world.entities)
    open_relations = [
        r
        for r in relations_of(entity.kind)
        if (entity.name, r.key) not in world.truth and r.key != "spouse"
    ]
    if not open_relations:
        return None
    relation = rng.choice(open_relations)
    text, template = ask(world, relation, entity)
    known = relation.knows(template)
    return Question(text, NOT_SAID, "not_said", relation.key, known_words=known)


def two_hop(world: World) -> Question | None:
    """Ask for a fact of something that another fact names; the answer states the bridge first."""
    by_name = {entity.name: entity for entity in world.entities}
    links = [
        (name, key, value, second)
        for (name, key), (value, _) in world.truth.items()
        if key in BRIDGES and value in by_name
        for second in BRIDGES[key][1]
        if (value, second) in world.truth
    ]
    if not links:
        return None
    name, key, bridge, second = world.rng.choice(links)
    described = BRIDGES[key][0].format(s=name)
    text, _ = ask(world, RELATIONS[second], by_name[bridge], described)
    value, gold = world.truth[bridge, second]
    gold = tuple(sorted({*gold, *world.truth[name, key][1]}))
    return Question(text, f"{bridge}: {value}", "two_hop", second, gold)


def mentioned_first(world: World, documents: Sequence[str]) -> Question | None:
    """Ask which of two subjects comes first in the prompt."""
    if len(world.entities) < 2:
        return None
    text = "\n".join(documents).lower()
    one, other = world.rng.sample(world.entities, 2)
    places = [text.find(entity.name.lower()) for entity in (one, other)]
    if min(places) < 0:
        return None
    answer = one if places[0] < places[1] else other
    asked = world.rng.choice(
        ("Which is mentioned first, {a} or {b}?", "What comes first, {a} or {b}?")
    )
    return Question(asked.format(a=one.name, b=other.name), answer.name, "first")


def tally(world: World) -> Question | None:
    """Ask how often something happened."""
    if not world.counted:
        return None
    event = world.rng.choice(sorted(world.counted))
    return Question(EVENTS[event].question, str(world.counted[event]), "tally")


def since(world: World) -> Question | None:
    """Ask how often something happened since it was last set back."""
    if not world.since:
        return None
    event = world.rng.choice(sorted(world.since))
    return Question(EVENTS[event].since, str(world.since[event]), "since")


def turned(world: World) -> Question | None:
    """Ask for the state that something was turned to last."""
    if not world.turned:
        return None
    text = world.rng.choice(sorted(world.turned))
    state, index = world.turned[text]
    return Question(text, state, "turned", gold=(index,))


def cut(world: World) -> Question | None:
    """Ask for a fact whose sentence is cut by a border."""
    return one_hop(world, world.rng.choice(sorted(world.cut))) if world.cut else None


def draw_question(world: World, documents: Sequence[str]) -> Question | None:
    """Draw a question that hangs on more than one stated fact; none: ask for a fact."""
    draw = world.rng.random()
    bounds = world.spec.mix.bounds
    not_said_to, two_hop_to, first_to, tally_to, turned_to, latest_to, cut_to = bounds
    if draw < not_said_to:
        return not_said(world)
    if draw < two_hop_to:
        return two_hop(world)
    if draw < first_to:
        return mentioned_first(world, documents)
    if draw < tally_to:
        half = (first_to + tally_to) / 2
        return tally(world) if draw < half or not world.since else since(world)
    if draw < turned_to and world.turned:
        return turned(world)
    if draw < latest_to and world.updated:
        return one_hop(world, world.rng.choice(sorted(world.updated)))
    return cut(world) if draw < cut_to else None


def make_questions(world: World, documents: Sequence[str]) -> tuple[Question, ...]:
    """Draw questions in the world's mix."""
    rng, spec = world.rng, world.spec
    keys = list(world.truth)
    questions: list[Question] = []
    seen: set[str] = set()
    for _ in range(4 * spec.num_questions):
        if len(questions) == spec.num_questions:
            break
        question = None if spec.one_hop_only else draw_question(world, documents)
        if question is None:
            question = one_hop(world, rng.choice(keys))
        if question.text not in seen:
            seen.add(question.text)
            questions.append(question)
    return tuple(questions)


def make_example(spec: WorldSpec, seed: int, lexicon: Lexicon = NO_LEXICON) -> Example:
    """Make one training example: documents, glue, system text and questions."""
    world, documents = make_world(spec, seed, lexicon)
    questions = make_questions(world, documents)
    rng = world.rng
    system = rng.choice(SYSTEM_TEXTS) if rng.random() < 0.75 else None
    joiner = rng.choices(("\n\n", "\n", ""), (0.75, 0.17, 0.08))[0]
    return Example(system, documents, (joiner,) * len(documents), questions)
