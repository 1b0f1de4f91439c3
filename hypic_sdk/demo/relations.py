"""The fixed vocabulary of relations the reader understands, with its phrasings.

Every phrasing is a template. `{s}`, `{p}` and `{o}` are the subject as subject, possessive and
object ("Ann Lee", "Ann Lee's", "Ann Lee", or "she", "her", "her"); `{v}` is the value and `{a}` the
value with its article. Templates start in lower case; the generator raises the first letter.
A relation has sentences of its own and frames crossed with its nouns. Held-out ones never appear in
training, so an evaluation on them measures understanding, not recall.
Standard library only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hypic_sdk.demo.grid import question_cells, statement_cells
from hypic_sdk.demo.heldout import (
    CELL_SHARE,
    FRAME_SHARE,
    LEAST_QUESTIONS,
    LEAST_STATEMENTS,
    OWN_SHARE,
    apart,
    held_out,
    words_of,
)
from hypic_sdk.demo.naming import PRONOUNS
from hypic_sdk.demo.phrasings import (
    PERSON_FRAMES,
    QUESTION_FRAMES,
    STATEMENT_FRAMES,
    cross,
    own_questions,
    own_statements,
    question_frames,
)
from hypic_sdk.demo.relations_data import PERSON, THINGS
from hypic_sdk.demo.words import ITEM_NOUNS

Part = Literal["all", "own", "framed", "grid", "wide"]
OWN_DRAWN = 0.67  # of all phrasings but the grid's, the share that are a relation's own
#: shares of training, which draws the grid too
WIDE: tuple[tuple[Part, float], ...] = (("own", 0.45), ("grid", 0.3), ("framed", 0.25))


@dataclass(frozen=True, slots=True)
class Phrasings:
    """Sentences of one use: a relation's own, frames crossed with its nouns, cells of its grid."""

    own: tuple[str, ...]
    framed: tuple[str, ...]
    grid: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """The three parts, in order."""
        return self.own, self.framed, self.grid

    def draw(self, rng: random.Random, part: Part = "all") -> str:
        """Draw one of a part; `all` leaves out the grid, `wide` does not."""
        if part == "all":
            part = "own" if rng.random() < OWN_DRAWN else "framed"
        elif part == "wide":
            parts, shares = zip(*WIDE, strict=True)
            part = rng.choices(parts, shares)[0]
        chosen = {"own": self.own, "framed": self.framed, "grid": self.grid}[part]
        return rng.choice(chosen or self.own or self.framed or self.grid)

    def without(self, slot: str) -> Phrasings:
        """Return those that lack a slot; all of them, if every one has it."""
        kept = [tuple(t for t in part if slot not in t) for part in self.parts]
        return Phrasings(*kept) if any(kept) else self

    def __iter__(self) -> Iterator[str]:
        return iter((*self.own, *self.framed, *self.grid))


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation: what it links, and how people state it and ask for it."""

    key: str
    subject_kind: str  # person, company, town or item
    value_kind: str  # names a value maker of `worlds`
    mutable: bool  # may be updated later in a prompt; the latest statement wins
    statements: Phrasings
    held_statements: Phrasings
    questions: Phrasings
    held_questions: Phrasings
    example_value: str
    words: frozenset[str]  # all that training's statements and questions of the relation have

    def knows(self, template: str) -> bool:
        """Tell whether training shows every word of a template in this relation's sentences."""
        return words_of(template) <= self.words

    @property
    def example_statement(self) -> str:
        """A sentence that a visitor may type."""
        return self._example(self.statements.own[0])

    @property
    def example_question(self) -> str:
        """A question that asks for `example_value`."""
        return self._example(self.questions.own[0])

    def _example(self, template: str) -> str:
        pronoun = "she" if self.subject_kind == "person" else "it"
        return render(template, EXAMPLE_SUBJECTS[self.subject_kind], self.example_value, pronoun)


EXAMPLE_SUBJECTS: Mapping[str, str] = {
    "person": "Ada Lindqvist",
    "company": "Brenholt Foods",
    "town": "Norwick",
    "item": "the Orrin lantern",
}


def article(noun: str) -> str:
    """Put "a" or "an" before a noun, by its first letter."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def possessive(name: str) -> str:
    """Return the genitive of a name."""
    return f"{name}'s"


def capitalise(sentence: str) -> str:
    """Raise the first letter and leave the rest alone."""
    return sentence[:1].upper() + sentence[1:]


def fill(template: str, subject: str, genitive: str, object_form: str, value: str = "") -> str:
    """Fill a template; a value is needed by statements only."""
    with_article = article(value) if value else ""
    return template.format(s=subject, p=genitive, o=object_form, v=value, a=with_article)


def named_once(template: str, name: str, pronouns: Sequence[str]) -> tuple[str, str, str]:
    """Return what fills `{s}`, `{p}` and `{o}`: the name where the first stands, then pronouns."""
    places = [template.find(slot) for slot in ("{s}", "{p}", "{o}")]
    first = min((place for place in places if place >= 0), default=-1)
    named = (name, possessive(name), name)
    subject, genitive, object_form = (
        form if place == first else pronoun
        for place, form, pronoun in zip(places, named, pronouns, strict=True)
    )
    return subject, genitive, object_form


def render(template: str, subject: str, value: str, pronoun: str = "she") -> str:
    """Fill a template with a full name, later a pronoun, and a value, as one sentence."""
    return capitalise(fill(template, *named_once(template, subject, PRONOUNS[pronoun]), value))


def _split(phrasings: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in phrasings.split("|"))


HELD_STATEMENT_FRAMES = held_out("frame", "", STATEMENT_FRAMES.split("|"), FRAME_SHARE, 1)
HELD_QUESTION_FRAMES = held_out(
    "question frame", "", [*QUESTION_FRAMES.split("|"), *PERSON_FRAMES.split("|")], FRAME_SHARE, 1
)


def _parted(
    kind: str,
    key: str,
    own: Sequence[str],
    frames: Sequence[str],
    cells: Sequence[str],
    least: int,
) -> tuple[Phrasings, Phrasings]:
    """Part phrasings into those of training and the held-out ones.

    The first of a relation's own is the example that visitors are shown; it is never held out.
    """
    unique = list(dict.fromkeys(own))
    held_frames = (*HELD_STATEMENT_FRAMES, *HELD_QUESTION_FRAMES)
    held = Phrasings(
        held_out(kind, key, unique[1:], OWN_SHARE, least),
        tuple(cross(key, [frame for frame in frames if frame in held_frames])),
        held_out(f"{kind} cell", key, list(dict.fromkeys(cells)), CELL_SHARE, least),
    )
    seen = Phrasings(
        apart(unique, held),
        apart(cross(key, [frame for frame in frames if frame not in held_frames]), held),
        apart(cells, held),
    )
    return seen, held


def _build() -> dict[str, Relation]:
    relations: dict[str, Relation] = {}
    for key, subject, value, flags, example, said, said_more, asked, asked_more in PERSON + THINGS:
        stated = [*_split(said), *_split(said_more), *own_statements(key)]
        questions = [*_split(asked), *_split(asked_more), *own_questions(key)]
        cells = statement_cells(key, subject)
        frames = STATEMENT_FRAMES.split("|")
        seen, held = _parted("statement", key, stated, frames, cells, LEAST_STATEMENTS)
        cells, frames = question_cells(key), question_frames(key)
        seen_asked, held_asked = _parted("question", key, questions, frames, cells, LEAST_QUESTIONS)
        relations[key] = Relation(
            key=key,
            subject_kind=subject,
            value_kind=value,
            mutable="mutable" in flags,
            statements=seen,
            held_statements=held,
            questions=seen_asked,
            held_questions=held_asked,
            example_value=example,
            words=words_of(" ".join((*seen, *seen_asked))),
        )
    return relations


#: relation key to relation, in the order in which the demo lists them
RELATIONS: Mapping[str, Relation] = _build()


#: every word of training's statements and questions, pronouns, and the kinds of things they name
TAUGHT_WORDS = words_of(" ".join(ITEM_NOUNS)).union(
    *(relation.words for relation in RELATIONS.values()), *PRONOUNS.values()
)


def untaught_words(text: str) -> tuple[str, ...]:
    """Return the words of a question that no sentence of any relation has in training, in order.

    Words with a capital or a digit are taken for names and values: any of them can be read.
    """
    spoken = re.findall(r"[A-Za-z0-9]+", text.replace("'s", ""))
    plain = [word for word in spoken if word.isalpha() and word.islower()]
    return tuple(dict.fromkeys(word for word in plain if word not in TAUGHT_WORDS))


def relations_of(subject_kind: str) -> tuple[Relation, ...]:
    """Return the relations that a kind of subject can have."""
    return tuple(r for r in RELATIONS.values() if r.subject_kind == subject_kind)
