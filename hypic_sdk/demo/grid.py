"""Sentences by a grid: verb phrases of a relation crossed with constructions.

A held-out cell of the grid is a new sentence of known words: its verb phrase and its construction
are both trained, in other cells. Standard library only.
"""

from __future__ import annotations

import re

from hypic_sdk.demo.grid_data import KERNELS
from hypic_sdk.demo.phrasings import NOUNS

# ruff: noqa: E501 - one list a line reads better than wrapped strings
#: constructions with the subject in front of its verb `{x}` and complement `{c}`
OF_SUBJECT = (
    "{s} {x} {c}.|it is {c} that {s} {x}.|it was {c} that {s} {x}.|{c}, so one reads, {s} {x}.|{s}, {r} {x} {c}, is known to all.|"
    "{s}, as is well known, {x} {c}.|{s} {x}, as is well known, {c}.|that {s} {x} {c} is well known.|the fact that {s} {x} {c} is no secret.|"
    "since {s} {x} {c}, nobody asks further.|though few know it, {s} {x} {c}.|{s} is known to all and {x} {c}.|"
    "there is one thing to say about {o}: {s} {x} {c}.|ask anyone and hear that {s} {x} {c}.|if the papers are right, {s} {x} {c}.|"
    "{s} {x} {c}, and that is certain.|{s} is not new to us: {s} {x} {c}.|whoever knows {o} knows that {s} {x} {c}.|"
    '"{s} {x} {c}," said the guide.|{s} - {x} {c}.|the one that {x} {c} is {s}.|when it comes to {o}, know that {s} {x} {c}.|'
    "one more line on {o}: {s} {x} {c}.|it is beyond doubt that {s} {x} {c}.|what everybody tells about {o} is that {s} {x} {c}.|"
    "of {o} it is told that {s} {x} {c}.|did you know that {s} {x} {c}? now you do.|as {s} {x} {c}, the clerk made a note of it.|"
    "{s}, so the list has it, {x} {c}.|{s} {x}, so the list has it, {c}.|because {s} {x} {c}, the guide speaks of it.|while others differ, {s} {x} {c}.|"
    "the papers say of {o}: {x} {c}.|nobody denies that {s} {x} {c}, least of all the clerk."
)
#: constructions with the value `{w}` in front of its verb phrase `{k}`
OF_VALUE = (
    "{w} {k}.|it is {w} that {k}.|it was {w} that {k}, as is well known.|the one that {k} is {w}.|{w} is the one that {k}.|"
    "what everybody tells is that {w} {k}.|{w}, as is well known, {k}.|that {w} {k} is well known.|the fact that {w} {k} is no secret.|"
    "since {w} {k}, nobody asks further.|if the papers are right, {w} {k}.|{w} {k}, and that is certain.|"
    '"{w} {k}," said the guide.|it is beyond doubt that {w} {k}.|ask anyone and hear that {w} {k}.|did you know that {w} {k}? now you do.|'
    "as {w} {k}, the clerk made a note of it.|the papers name {w} as the one that {k}.|{w}, so the list has it, {k}.|though few know it, {w} {k}.|"
    "because {w} {k}, the guide speaks of it.|nobody denies that {w} {k}, least of all the clerk."
)
#: what stands before an indirect question, and its end
ASKED = "tell me *.|do you know *?|can you tell me *?|I would like to know *.|I wonder *.|please say *.|it would help to know *.|could you find out *?|find out *.|the question is *.|do the documents say *?|we must know *.|what we need is to know *.|is it written *?|say *.|remind me *."
#: what names the value's kind before it; a question names it itself
CLASS_NOUN = re.compile(
    r"(the )?((age|region) of |(code|extension|river|year|mayor|number|label|name) )?$"
)
RELATIVE = {"person": "who", "company": "which", "town": "which", "item": "which"}


def statement_cells(key: str, subject_kind: str) -> list[str]:
    """Return every statement of a relation's grid."""
    _, of_subject, of_value = KERNELS[key]
    cells = []
    for kernel in of_subject.split("|"):
        verb, complement = kernel.split("~")
        for construction in OF_SUBJECT.split("|"):
            text = construction.replace("{x}", verb).replace("{c}", complement)
            cells.append(text.replace("{r}", RELATIVE[subject_kind]))
    value = NOUNS[key][1].removeprefix("who ")
    for kernel in of_value.split("|"):
        for construction in OF_VALUE.split("|"):
            cells.append(construction.replace("{k}", kernel).replace("{w}", value))
    return cells


def question_cells(key: str) -> list[str]:
    """Return every indirect question of a relation's grid."""
    asked_for, of_subject, of_value = KERNELS[key]
    clauses = []
    for kernel in of_subject.split("|"):
        verb, complement = kernel.split("~")
        before = re.split(r"\{[va]\}", complement)[0]
        clauses.append(f"{CLASS_NOUN.sub('', before)}{asked_for} {{s}} {verb}")
    clauses += [f"{asked_for} {kernel}" for kernel in of_value.split("|")]
    return [opener.replace("*", clause) for clause in clauses for opener in ASKED.split("|")]
