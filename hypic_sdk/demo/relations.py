"""The fixed vocabulary of relations the reader understands, with its phrasings.

Every phrasing is a template. `{s}`, `{p}` and `{o}` are the subject as subject, possessive and
object ("Ann Lee", "Ann Lee's", "Ann Lee", or "she", "her", "her"); `{v}` is the value and `{a}` the
value with its article. Templates start in lower case; the generator raises the first letter.
Phrasings marked as held out never appear in training, so an evaluation on them measures
understanding, not recall.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypic_sdk.demo.phrasings import more_questions, more_statements
from hypic_sdk.demo.relations_data import PERSON, THINGS


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation: what it links, and how people state it and ask for it."""

    key: str
    subject_kind: str  # person, company, town or item
    value_kind: str  # names a value maker of `worlds`
    mutable: bool  # may be updated later in a prompt; the latest statement wins
    statements: tuple[str, ...]
    held_statements: tuple[str, ...]
    questions: tuple[str, ...]
    held_questions: tuple[str, ...]
    example_value: str

    @property
    def example_statement(self) -> str:
        """A sentence that a visitor may type."""
        return render(self.statements[0], EXAMPLE_SUBJECTS[self.subject_kind], self.example_value)

    @property
    def example_question(self) -> str:
        """A question that asks for `example_value`."""
        return render(self.questions[0], EXAMPLE_SUBJECTS[self.subject_kind], self.example_value)


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


def render(template: str, subject: str, value: str) -> str:
    """Fill a template with a full name and a value, as one sentence."""
    return capitalise(fill(template, subject, possessive(subject), subject, value))


def _split(phrasings: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in phrasings.split("|"))


def _train(phrasings: str, held: str, more: list[str]) -> tuple[str, ...]:
    """Join hand-written and crossed phrasings, about as likely each, without the held-out ones."""
    written = _split(phrasings)
    weight = max(1, len(more) // (2 * len(written)))
    return tuple(p for p in (*written * weight, *more) if p not in _split(held))


def _build() -> dict[str, Relation]:
    relations: dict[str, Relation] = {}
    for key, subject, value, flags, example, said, said_held, asked, asked_held in PERSON + THINGS:
        relations[key] = Relation(
            key=key,
            subject_kind=subject,
            value_kind=value,
            mutable="mutable" in flags,
            statements=_train(said, said_held, more_statements(key)),
            held_statements=_split(said_held),
            questions=_train(asked, asked_held, more_questions(key)),
            held_questions=_split(asked_held),
            example_value=example,
        )
    return relations


#: relation key to relation, in the order in which the demo lists them
RELATIONS: Mapping[str, Relation] = _build()


def relations_of(subject_kind: str) -> tuple[Relation, ...]:
    """Return the relations that a kind of subject can have."""
    return tuple(r for r in RELATIONS.values() if r.subject_kind == subject_kind)
