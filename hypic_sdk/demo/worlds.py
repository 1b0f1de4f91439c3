"""Invented worlds: documents about people, companies, towns and things, with questions on them.

A world is a function of its seed. Names, statement phrasings and question phrasings are held out
by construction (see `naming` and `relations`). Standard library only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from hypic_sdk.demo import cuts
from hypic_sdk.demo.documents import (
    EVENTS,
    SWITCHES,
    Event,
    Fact,
    Reset,
    Turn,
    Writer,
    heading,
    join_sentences,
)
from hypic_sdk.demo.naming import Entity, Lexicon, Namer
from hypic_sdk.demo.relations import (
    RELATIONS,
    Part,
    Relation,
    relations_of,
)

NO_LEXICON = Lexicon()
TOKENS_PER_SENTENCE = 13
KINDS = ("person", "person", "person", "company", "town", "item")
LINKED_KINDS = {
    "works_for": "company",
    "born_in": "town",
    "lives_in": "town",
    "based_in": "town",
    "mayor": "person",
    "keeper": "person",
}


Item = Fact | Event | Reset | Turn


@dataclass(frozen=True, slots=True)
class Mix:
    """Percent of questions of each kind, where a world allows it; the others ask for one fact.

    The tuples are drawn from: how many updates, events, switches and cuts a world has.
    """

    not_said: int = 10
    two_hop: int = 7
    first: int = 4
    tally: int = 5  # half of them since it was last set back
    turned: int = 8
    latest: int = 10
    cut: int = 0
    updates: tuple[int, ...] = (0, 0, 1, 2, 4)
    events: tuple[int, ...] = (0, 0, 0, 1, 2)
    switches: tuple[int, ...] = (0, 0, 1, 2)
    cuts: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        assert 0 <= self.bounds[-1] <= 1.0

    @property
    def bounds(self) -> tuple[float, ...]:
        """Where in [0, 1) each kind ends, in the order above."""
        kinds = (
            self.not_said,
            self.two_hop,
            self.first,
            self.tally,
            self.turned,
            self.latest,
            self.cut,
        )
        return tuple(sum(kinds[: at + 1]) / 100 for at in range(len(kinds)))


MIXES = {
    "reader": Mix(),
    # most questions hang on more than one document, or on its place
    "judge": Mix(13, 13, 9, 10, 10, 13, 10, (0, 1, 2, 4), (0, 1, 1, 2), (0, 1, 1, 2), (0, 1, 2, 3)),
    # the same, and far more often which of two comes first
    "order": Mix(10, 15, 24, 4, 5, 10, 7, (0, 1, 2, 4), (0, 0, 1, 2), (0, 0, 1, 2), (0, 1, 2, 3)),
}


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
    resets: bool = False  # whether events are set back, in one document or two
    switches: int = 0
    cuts: int = 0  # borders of documents that cut a fact in two, at most
    one_hop_only: bool = False
    mix: Mix = MIXES["reader"]


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
    cut: set[tuple[str, str]] = field(default_factory=set)
    counted: dict[int, int] = field(default_factory=dict)
    #: event to how often it happened since it was last set back
    since: dict[int, int] = field(default_factory=dict)
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
        self._plan_cuts(plans)
        documents, begun = [], ""
        for plan in plans:
            document, begun = cuts.halves(self._render(plan, begun))
            documents.append(document)
        return tuple(documents)

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
            self.counted[event] = self.rng.randint(*((2, 7) if self.spec.resets else (1, 5)))
            for _ in range(self.counted[event]):
                plan = self.rng.choice(plans)
                plan.insert(self.rng.randint(0, len(plan)), EVENTS[event])
            if self.spec.resets:
                self._set_back(plans, event)

    def _set_back(self, plans: list[list[Item]], number: int) -> None:
        """Set the counting of an event back in one document or two, and count what is left."""
        rng, event, found = self.rng, EVENTS[number], 0
        for plan in rng.sample(plans, rng.randint(1, min(2, len(plans)))):
            plan.insert(rng.randint(0, len(plan)), Reset(event))
        for item in (item for plan in plans for item in plan):
            found = 0 if item == Reset(event) else found + (item == event)
        self.since[number] = found

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

    def _plan_cuts(self, plans: list[list[Item]]) -> None:
        """Have facts said last in their document, their value at the beginning of the next one."""
        rng, num_borders = self.rng, len(plans) - 1
        for border in rng.sample(range(num_borders), num_borders if self.spec.cuts else 0):
            facts = [item for item in plans[border] if isinstance(item, Fact) and self._fits(item)]
            if not facts or len(self.cut) == self.spec.cuts:
                continue
            fact = rng.choice(facts)
            plans[border].remove(fact)
            plans[border].append(replace(fact, is_cut=True))
            key = fact.entity.name, fact.relation
            self.truth[key] = fact.value, (border, border + 1)
            self.cut.add(key)

    def _fits(self, fact: Fact) -> bool:
        """Tell whether a fact can be cut, and is what holds in the end."""
        relation, held = RELATIONS[fact.relation], self.spec.held_statements
        is_updated = (fact.entity.name, fact.relation) in self.updated
        return not is_updated and cuts.can_be_cut(relation, fact.value, held)

    def _render(self, plan: list[Item], begun: str) -> str:
        """Write a document, behind the second half of a sentence that the one before began."""
        rng, spec = self.rng, self.spec
        writer = Writer(rng, spec.held_statements, spec.part, self.namer.lexicon.prose)
        sentences = [begun] if begun else []
        first = next((item.entity for item in plan if isinstance(item, Fact)), None)
        has_title = first is not None and not begun and rng.random() < 0.3
        title = heading(rng, first) + "\n" if first is not None and has_title else ""
        at = 0
        while at < len(plan):
            item = plan[at]
            following = plan[at + 1] if at + 1 < len(plan) else None
            at += 1
            while rng.random() < spec.filler_share:
                sentences.append(writer.filler())
            if isinstance(item, Event):
                sentences.append(rng.choice(item.sentences))
            elif isinstance(item, Reset):
                sentences.append(item.event.reset)
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
            and not (item.update or following.update or following.is_cut)
            and not self.spec.held_statements
            and self.rng.random() < 0.15
        )


def make_world(
    spec: WorldSpec, seed: int, lexicon: Lexicon = NO_LEXICON
) -> tuple[World, tuple[str, ...]]:
    """Build a world and write its documents."""
    rng = random.Random(seed)
    world = World(spec, rng, Namer(rng, spec.held_names, lexicon))
    return world, world.write()
