"""Invented worlds: documents about people, companies, towns and things, with questions on them.

A world is a function of its seed. Names, statement phrasings and question phrasings are held out
by construction (see `naming` and `relations`). Standard library only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypic_sdk.demo.documents import (
    EVENTS,
    SWITCHES,
    Event,
    Fact,
    Turn,
    Writer,
    heading,
    join_sentences,
)
from hypic_sdk.demo.naming import PRONOUNS, Entity, Lexicon, Namer
from hypic_sdk.demo.relations import (
    RELATIONS,
    Part,
    Relation,
    capitalise,
    fill,
    possessive,
    relations_of,
)

NO_LEXICON = Lexicon()
NOT_SAID = "The documents do not say."
SYSTEM_TEXTS = (
    "Answer from the documents.",
    "Answer the question from the documents. Answer briefly.",
    "You are a careful reader. Use the documents only.",
    "You answer questions from the documents you are given.",
    "You are a helpful assistant.",
)
TOKENS_PER_SENTENCE = 13
ASK_OPENERS = (
    "According to the documents, ",
    "Please tell me: ",
    "Say, ",
    "One question: ",
    "Quickly: ",
)
KINDS = ("person", "person", "person", "company", "town", "item")
#: relation to the phrase that names its value, and the relations asked of that value
BRIDGES = {
    "works_for": ("the company that {s} works for", ("based_in", "led_by", "makes", "founded")),
    "born_in": ("the town where {s} was born", ("river", "mayor", "region", "known_for")),
    "lives_in": ("the town where {s} lives", ("river", "mayor", "region", "known_for")),
    "keeper": ("the person who keeps {s}", ("age", "job", "pet", "colour")),
}
LINKED_KINDS = {
    "works_for": "company",
    "born_in": "town",
    "lives_in": "town",
    "based_in": "town",
    "mayor": "person",
    "keeper": "person",
}


Item = Fact | Event | Turn


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its one right answer, and where the answer stands."""

    text: str
    answer: str
    kind: str  # one_hop, latest, two_hop, first, tally, turned or not_said
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


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """What a world looks like."""

    num_documents: int
    document_tokens: int  # about
    held_names: bool = False
    held_statements: bool = False
    held_questions: bool = False
    part: Part = "all"  # of the phrasings, which are drawn
    num_questions: int = 4
    filler_share: float = 0.3
    updates: int = 0
    events: int = 0
    switches: int = 0
    one_hop_only: bool = False


@dataclass(slots=True)
class World:
    """A world in the making."""

    spec: WorldSpec
    rng: random.Random
    namer: Namer
    entities: list[Entity] = field(default_factory=list)
    #: (entity name, relation) to (value, documents that state it)
    truth: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    updated: set[tuple[str, str]] = field(default_factory=set)
    counted: dict[int, int] = field(default_factory=dict)
    #: question to the last state and the document that states it
    turned: dict[str, tuple[str, int]] = field(default_factory=dict)
    home: dict[str, int] = field(default_factory=dict)
    #: (entity name, relation) to the template that stated it last
    said: dict[tuple[str, str], str] = field(default_factory=dict)

    def write(self) -> tuple[str, ...]:
        """Write every document and remember what was said where."""
        plans = [self._plan(index) for index in range(self.spec.num_documents)]
        self._plan_updates(plans)
        self._plan_events(plans)
        self._plan_turns(plans)
        return tuple(self._render(plan) for plan in plans)

    def _plan(self, index: int) -> list[Item]:
        """Choose the facts of one document, entity after entity."""
        rng, spec = self.rng, self.spec
        jitter = rng.uniform(0.7, 1.3) * (1.0 - spec.filler_share)
        num_facts = max(1, round(spec.document_tokens * jitter / TOKENS_PER_SENTENCE))
        one_kind = rng.choice(KINDS) if rng.random() < 0.5 else None
        facts: list[Item] = []
        while len(facts) < num_facts:
            entity = self.namer.entity(one_kind or rng.choice(KINDS))
            self.entities.append(entity)
            self.home[entity.name] = index
            relations = relations_of(entity.kind)
            wanted = min(num_facts - len(facts), rng.randint(2, 6), len(relations))
            for relation in rng.sample(relations, wanted):
                facts.append(self._fact(entity, relation, index))
        if rng.random() < 0.15:
            rng.shuffle(facts)
        return facts

    def _fact(self, entity: Entity, relation: Relation, index: int, update: bool = False) -> Fact:
        value = self._value(entity, relation)
        self.truth[entity.name, relation.key] = (value, (index,))
        return Fact(entity, relation.key, value, update)

    def _value(self, entity: Entity, relation: Relation) -> str:
        kind = LINKED_KINDS.get(relation.key)
        if kind is not None and self.rng.random() < 0.4:
            others = [e for e in self.entities if e.kind == kind and e.name != entity.name]
            if others:
                return self.rng.choice(others).name
        return self.namer.value(relation.value_kind)

    def _plan_updates(self, plans: list[list[Item]]) -> None:
        stated = [key for key in self.truth if RELATIONS[key[1]].mutable]
        self.rng.shuffle(stated)
        by_name = {entity.name: entity for entity in self.entities}
        for name, key in stated[: self.spec.updates]:
            index = self.rng.randint(self.home[name], len(plans) - 1)
            old = self.truth[name, key][0]
            fact = self._fact(by_name[name], RELATIONS[key], index, update=True)
            if fact.value == old:
                self.truth[name, key] = (old, (self.home[name],))
                continue
            self.updated.add((name, key))
            plan = plans[index]
            floor = 0
            if index == self.home[name]:
                floor = 1 + max(
                    i for i, f in enumerate(plan) if isinstance(f, Fact) and f.entity.name == name
                )
            plan.insert(self.rng.randint(floor, len(plan)), fact)

    def _plan_events(self, plans: list[list[Item]]) -> None:
        for event in self.rng.sample(range(len(EVENTS)), min(self.spec.events, len(EVENTS))):
            self.counted[event] = self.rng.randint(1, 5)
            for _ in range(self.counted[event]):
                plan = self.rng.choice(plans)
                plan.insert(self.rng.randint(0, len(plan)), EVENTS[event])

    def _plan_turns(self, plans: list[list[Item]]) -> None:
        """Turn some switches again and again, in more than one document where there are several."""
        rng, num_documents = self.rng, len(plans)
        for switch in rng.sample(SWITCHES, min(self.spec.switches, len(SWITCHES))):
            few = min(2, num_documents)
            chosen = rng.sample(range(num_documents), rng.randint(few, min(6, num_documents)))
            state = ""
            for index in sorted(chosen):
                state = rng.choice([one for one in switch.states if one != state])
                plans[index].insert(rng.randint(0, len(plans[index])), Turn(switch, state))
                self.turned[switch.question] = state, index

    def _render(self, plan: list[Item]) -> str:
        rng, spec = self.rng, self.spec
        writer = Writer(rng, spec.held_statements, spec.part, self.namer.lexicon.prose)
        sentences: list[str] = []
        first = next((item.entity for item in plan if isinstance(item, Fact)), None)
        title = heading(rng, first) + "\n" if first is not None and rng.random() < 0.3 else ""
        at = 0
        while at < len(plan):
            item = plan[at]
            following = plan[at + 1] if at + 1 < len(plan) else None
            at += 1
            while rng.random() < spec.filler_share:
                sentences.append(writer.filler())
            if isinstance(item, Event):
                sentences.append(rng.choice(item.sentences))
            elif isinstance(item, Turn):
                sentences.append(rng.choice(item.switch.sentences).format(s=item.state))
            elif self._joinable(item, following):
                assert isinstance(following, Fact)
                sentences.append(writer.joined(item, following))
                at += 1
            else:
                sentences.append(writer.fact(item))
        self.said |= writer.said
        return title + join_sentences(rng, sentences)

    def _joinable(self, item: Fact, following: Item | None) -> bool:
        return (
            isinstance(following, Fact)
            and following.entity == item.entity
            and not (item.update or following.update or self.spec.held_statements)
            and self.rng.random() < 0.15
        )


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
    kind = "latest" if key in world.updated else "one_hop"
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


def turned(world: World) -> Question | None:
    """Ask for the state that something was turned to last."""
    if not world.turned:
        return None
    text = world.rng.choice(sorted(world.turned))
    state, index = world.turned[text]
    return Question(text, state, "turned", gold=(index,))


def make_world(
    spec: WorldSpec, seed: int, lexicon: Lexicon = NO_LEXICON
) -> tuple[World, tuple[str, ...]]:
    """Build a world and write its documents."""
    rng = random.Random(seed)
    world = World(spec, rng, Namer(rng, spec.held_names, lexicon))
    return world, world.write()


def make_questions(world: World, documents: Sequence[str]) -> tuple[Question, ...]:
    """Draw questions: mostly one stated fact, some that the recurrent state must carry."""
    rng, spec = world.rng, world.spec
    keys = list(world.truth)
    questions: list[Question] = []
    seen: set[str] = set()
    for _ in range(4 * spec.num_questions):
        if len(questions) == spec.num_questions:
            break
        draw = rng.random()
        question: Question | None = None
        if not spec.one_hop_only and draw < 0.10:
            question = not_said(world)
        elif not spec.one_hop_only and draw < 0.17:
            question = two_hop(world)
        elif not spec.one_hop_only and draw < 0.21:
            question = mentioned_first(world, documents)
        elif not spec.one_hop_only and draw < 0.26:
            question = tally(world)
        elif not spec.one_hop_only and draw < 0.34 and world.turned:
            question = turned(world)
        elif not spec.one_hop_only and draw < 0.44 and world.updated:
            question = one_hop(world, rng.choice(sorted(world.updated)))
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
