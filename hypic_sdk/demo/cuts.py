"""Sentences that the border of two documents cuts in two, as retrievers cut texts anywhere.

A statement is cut right before its value: "... Marek lives in" ends one document, "Vellin. ..."
begins the next one. Whose value that is, only the first half tells. Standard library only.
"""

from __future__ import annotations

import re
from functools import cache

from hypic_sdk.demo.relations import Phrasings, Relation, article

MARK = "\0"  # stands before the value of a statement that is to be cut, until it is
#: a token has a byte or more, so the value is within a head of 8 tokens by any tokenizer
MOST_BYTES = 8
#: one value, a word of its own, behind all that names the subject
_LATE = re.compile(r"[^{]*(\{[spo]\}[^{]*)+ \{[va]\}[^{]*")


@cache
def late(pool: Phrasings) -> Phrasings:
    """Return the statements that can be cut: their value comes behind their subject."""
    return Phrasings(*(tuple(filter(_LATE.fullmatch, part)) for part in pool.parts))


def can_be_cut(relation: Relation, value: str, held_statements: bool) -> bool:
    """Tell whether a fact can be stated so that a border cuts it."""
    pool = relation.held_statements if held_statements else relation.statements
    return len(value.encode()) <= MOST_BYTES and any(late(pool).parts)


def marked(template: str, value: str) -> str:
    """Put the mark before the value; its article stays in the first half."""
    before = article(value).removesuffix(value)
    return template.replace("{a}", before + "{v}").replace("{v}", MARK + "{v}")


def halves(text: str) -> tuple[str, str]:
    """Part a text at its mark and drop the space there; without one, the second half is empty."""
    first, _, second = text.partition(f" {MARK}")
    return first, second
