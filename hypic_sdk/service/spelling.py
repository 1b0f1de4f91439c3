"""What of a text's spelling costs hits or changes tokens: white space, cuts within words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from hypic_sdk.prompt.pieces import CallerText, Piece, RenderedPrompt, TemplateText
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.conversation import DOCUMENTS

_REACH = 48  # characters on each side of a border that are looked at
_MAX_RESPELT_CHARS = 1 << 20
_EDGES = ("", " ", "\n", "\n\n")
_TAG_END = re.compile(r".*[>\]]", re.DOTALL)


def respellings(text: str) -> Iterator[str]:
    """Texts that differ from this one in white space only: what editors and loaders do to a text.

    Other line breaks, spaces at the ends of lines, runs of them as one, and other edges.
    """
    if len(text) > _MAX_RESPELT_CHARS:
        return
    lines = text.replace("\r\n", "\n")
    bare_lines = "\n".join(line.rstrip() for line in lines.split("\n"))
    insides = (text, lines, lines.replace("\n", "\r\n"), bare_lines, " ".join(text.split()))
    seen = {text}
    for inside in dict.fromkeys(one.strip() for one in insides):
        for front in _EDGES:
            for back in _EDGES:
                other = front + inside + back
                if inside and other not in seen:
                    seen.add(other)
                    yield other


@dataclass(frozen=True, slots=True)
class OddBorder:
    """A border at which the caller's cut or white space makes other tokens than the whole text."""

    text: CallerText  # the caller's text behind the border, or before it if that is the template's
    within_word: bool


def odd_borders(rendered: RenderedPrompt, tokenizer: PromptTokenizer) -> Iterator[OddBorder]:
    """Borders of the caller's doing at which tokens differ from those of the joined text.

    That is: a word cut in two between two of the caller's texts, and white space of the caller's at
    the border with the template.  Other borders differ too, as every piece is tokenised on its own;
    nobody can do anything about them.
    """
    for left, right in pairwise(rendered.pieces):
        callers = [one for one in (right, left) if isinstance(one, CallerText)]
        if not callers or any(_is_ours(one) for one in callers):
            continue
        end, start = left.text[-_REACH:], right.text[:_REACH]
        within_word = len(callers) == 2 and end[-1:].isalnum() and start[:1].isalnum()
        spaced = len(callers) == 1 and (
            start[:1].isspace() if isinstance(right, CallerText) else end[-1:].isspace()
        )
        if (within_word or spaced) and _differs(left, right, tokenizer):
            yield OddBorder(callers[0], within_word)


def _is_ours(text: CallerText) -> bool:
    """Glue and numbers that stand around top-level documents."""
    return text.message_index == DOCUMENTS and text.segment_id is None


def _differs(left: Piece, right: Piece, tokenizer: PromptTokenizer) -> bool:
    ends = [left.text[-_REACH:], right.text[:_REACH]]
    # what template text says as a control token stays one, so only what follows it is looked at
    if isinstance(left, TemplateText):
        ends[0] = _TAG_END.sub("", ends[0])
    if isinstance(right, TemplateText):
        ends[1] = re.split(r"[<\[]", ends[1])[0]
    apart = tokenizer.encode_text(ends[0]) + tokenizer.encode_text(ends[1])
    return apart != tokenizer.encode_text("".join(ends))
