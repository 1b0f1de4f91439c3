"""Turns facts of an invented world into the text of one document. Standard library only."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypic_sdk.demo import cuts, words
from hypic_sdk.demo.heldout import DROPPABLE, ROUGHENED_VERBS, SMALL_WORDS
from hypic_sdk.demo.naming import PRONOUNS, Entity
from hypic_sdk.demo.relations import RELATIONS, Part, capitalise, fill, named_once, possessive
from hypic_sdk.demo.wrappers import CLOSERS, OPENERS, UPDATE_OPENERS

FILLERS = (
    "{t}, the {n} {v}.",
    "The {j} {n} {v} {t}.",
    "The {n} near the {m} {v}.",
    "Nobody knew why the {n} {v}.",
    "The {n} was {j}, and the {m} was {k}.",
    "{t}, people talked about the {j} {n}.",
    "There was a {j} {n} beside the {m}.",
    "The {n} {v} because the {m} was too {j}.",
    "Many people liked the {j} {n}.",
    "A {j} {n} is better than a {k} {m}.",
    "It rained {t}.",
    "The story of the {j} {n} is told {t}.",
    "The {n} {v}, but the {m} was not.",
    "Somebody left a note about the {n}.",
    "The weather was {j} {t}.",
    "Not much is known about the {n}.",
    "The {j} {n} can be seen from the {m}.",
    "Photographs of the {n} hang near the {m}.",
    "After the {n} {v}, the {m} {w}.",
    "The {n} has been {j} for years.",
)
HEADINGS = (
    "{name}",
    "About {name}",
    "Notes on {name}",
    "Report {number}",
    "Page {number}",
    "From the archive",
    "Short facts",
    "Letter {number}",
    "File {number}: {name}",
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens a number of times, and the questions that count it.

    Counting starts anew behind each sentence of `reset`, for the second question alone.
    """

    sentences: tuple[str, ...]
    question: str
    reset: str
    since: str


EVENTS: tuple[Event, ...] = (
    Event(
        ("The bell rang.", "Then the bell rang.", "Once more the bell rang."),
        "How many times did the bell ring?",
        "The bell was mended.",
        "How many times did the bell ring since it was last mended?",
    ),
    Event(
        ("A ship arrived.", "Another ship arrived.", "Then a ship arrived."),
        "How many ships arrived?",
        "The harbour was emptied.",
        "How many ships arrived since the harbour was last emptied?",
    ),
    Event(
        ("The siren sounded.", "Again the siren sounded.", "The siren sounded once."),
        "How many times did the siren sound?",
        "The siren was cleaned.",
        "How many times did the siren sound since it was last cleaned?",
    ),
    Event(
        (
            "A parcel was delivered.",
            "Another parcel was delivered.",
            "Then a parcel was delivered.",
        ),
        "How many parcels were delivered?",
        "All parcels were fetched.",
        "How many parcels were delivered since all were last fetched?",
    ),
    Event(
        ("The red team scored.", "Again the red team scored.", "Then the red team scored."),
        "How many times did the red team score?",
        "A new match began.",
        "How many times did the red team score in the last match?",
    ),
    Event(
        ("A goal was missed.", "Another goal was missed.", "Once more a goal was missed."),
        "How many goals were missed?",
        "The teams changed sides.",
        "How many goals were missed since the teams last changed sides?",
    ),
)


@dataclass(frozen=True, slots=True)
class Switch:
    """Something that is turned from one state to another, and the question for the last one."""

    states: tuple[str, ...]
    sentences: tuple[str, ...]  # all alike: none says whether another turn follows
    question: str


SWITCHES: tuple[Switch, ...] = (
    Switch(
        ("red", "green", "blue", "yellow", "white", "black"),
        ("The signal turned {s}.", "Then the signal was {s}.", "The signal became {s}."),
        "Which colour did the signal have in the end?",
    ),
    Switch(
        ("north", "south", "east", "west"),
        ("The wind came from the {s}.", "Then the wind turned to the {s}."),
        "Where did the wind come from in the end?",
    ),
    Switch(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
        ("The dial was set to {s}.", "Then the dial stood at {s}.", "The dial moved to {s}."),
        "Where did the dial stand in the end?",
    ),
    Switch(
        ("open", "closed", "locked", "broken"),
        ("The gate was {s}.", "Then the gate was {s}.", "The gate was found {s}."),
        "In what state was the gate in the end?",
    ),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a switch: a statement of a document."""

    switch: Switch
    state: str


@dataclass(frozen=True, slots=True)
class Reset:
    """What sets the counting of an event back: a statement of a document."""

    event: Event


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement of a document."""

    entity: Entity
    relation: str
    value: str
    update: bool = False
    is_cut: bool = False  # by the end of its document, right before the value


@dataclass(slots=True)
class Writer:
    """Writes one document sentence by sentence, minding whom a pronoun would mean."""

    rng: random.Random
    held_statements: bool = False
    part: Part = "all"
    prose: Sequence[str] = ()
    #: (entity name, relation) to the template that stated it last
    said: dict[tuple[str, str], str] = field(default_factory=dict)
    last: Entity | None = None
    pending: str = ""

    def filler(self) -> str:
        """Return a sentence that answers nothing."""
        rng = self.rng
        if self.prose and rng.random() < 0.4:
            return rng.choice(self.prose)
        adjectives = rng.sample(words.ADJECTIVES, 2)
        nouns = rng.sample(words.NOUNS, 2)
        verbs = rng.sample(words.VERBS_PAST, 2)
        text = rng.choice(FILLERS).format(
            j=adjectives[0],
            k=adjectives[1],
            n=nouns[0],
            m=nouns[1],
            v=verbs[0],
            w=verbs[1],
            t=rng.choice(words.TIMES),
        )
        return capitalise(text)

    def fact(self, fact: Fact) -> str:
        """Return a statement of the fact; its subject becomes the one that pronouns mean.

        That of a cut fact has the mark of `cuts` where it is to be cut.
        """
        rng = self.rng
        sentence = self.clause(fact)
        if not self.held_statements:
            sentence = wrap(rng, roughen(rng, sentence), fact.update)
        elif fact.update:
            sentence = rng.choice(UPDATE_OPENERS) + sentence
        return capitalise(sentence)

    def joined(self, first: Fact, second: Fact) -> str:
        """Return one sentence that states two facts about one entity."""
        head = self.clause(first).removesuffix(".")
        template = self._template(second)
        if template.startswith("{s} ") and self.rng.random() < 0.6:
            _, genitive, object_form = PRONOUNS[second.entity.pronoun]
            tail = fill(template, "", genitive, object_form, second.value).strip()
            return capitalise(f"{head} and {tail}")
        clause = fill(template, *PRONOUNS[second.entity.pronoun], second.value)
        return capitalise(f"{head}, and {clause}")

    def clause(self, fact: Fact) -> str:
        """Return the statement in lower case, without opener."""
        template = self._template(fact)
        subject, genitive, object_form = self._reference(fact.entity)
        slots = [template.find(slot) for slot in ("{s}", "{p}", "{o}") if slot in template]
        if len(slots) > 1 and subject == fact.entity.name:
            return self._mixed(template, fact)
        return fill(template, subject, genitive, object_form, fact.value)

    def _mixed(self, template: str, fact: Fact) -> str:
        """Name the subject once; the later slots are pronouns."""
        forms = named_once(template, fact.entity.name, PRONOUNS[fact.entity.pronoun])
        return fill(template, *forms, fact.value)

    def _template(self, fact: Fact) -> str:
        relation = RELATIONS[fact.relation]
        pool = relation.held_statements if self.held_statements else relation.statements
        template = (cuts.late(pool) if fact.is_cut else pool).draw(self.rng, self.part)
        self.said[fact.entity.name, fact.relation] = template
        return cuts.marked(template, fact.value) if fact.is_cut else template

    def _reference(self, entity: Entity) -> tuple[str, str, str]:
        continues = self.last == entity
        self.last = entity
        draw = self.rng.random()
        if continues and draw < 0.55:
            return PRONOUNS[entity.pronoun]
        name = entity.short if continues and draw < 0.75 else entity.name
        return name, possessive(name), name


def wrap(rng: random.Random, sentence: str, update: bool) -> str:
    """Now and then put something before or after a statement; mostly so before an update."""
    draw = rng.random()
    if update and draw < 0.85:
        return rng.choice(UPDATE_OPENERS) + sentence
    if draw < 0.15:
        return rng.choice(OPENERS) + sentence
    if draw < 0.25:
        return sentence.removesuffix(".") + rng.choice(CLOSERS) + "."
    return sentence


def roughen(rng: random.Random, sentence: str) -> str:
    """Now and then add a small word or drop one, so that only the telling words are relied on."""
    draw = rng.random()
    if draw < 0.08:
        for verb in ROUGHENED_VERBS:
            if verb in sentence:
                return sentence.replace(verb, verb + rng.choice(SMALL_WORDS) + " ", 1)
    elif draw < 0.14:
        words_ = sentence.split(" ")
        droppable = [i for i, word in enumerate(words_) if word in DROPPABLE]
        if droppable:
            del words_[rng.choice(droppable)]
            return " ".join(words_)
    return sentence


def heading(rng: random.Random, entity: Entity) -> str:
    """Return a title line."""
    return capitalise(rng.choice(HEADINGS).format(name=entity.name, number=rng.randint(1, 99)))


def join_sentences(rng: random.Random, sentences: Sequence[str]) -> str:
    """Join sentences with spaces, now and then with a line break."""
    break_share = rng.choice((0.0, 0.0, 0.1, 0.3))
    parts = [sentences[0]]
    for sentence in sentences[1:]:
        parts.append("\n" if rng.random() < break_share else " ")
        parts.append(sentence)
    return "".join(parts)
