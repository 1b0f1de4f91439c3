"""A prompt's tokens back to its messages, as the packaged chat template writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypic_sdk.prompt.tokenizer import PromptTokenizer

BEGIN, END = "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: who, and what."""

    role: str
    text: str


def read_turns(token_ids: Sequence[int], tokenizer: PromptTokenizer) -> tuple[Turn, ...]:
    """The messages in order; the last one is what the reply goes on from.

    They are told apart by control tokens, which no caller's text can make.  Without any the prompt
    is a plain one: one message of the user.
    """
    turns = tuple(_turns(token_ids, tokenizer))
    return turns or (Turn("user", tokenizer.decode(token_ids)),)


def _turns(token_ids: Sequence[int], tokenizer: PromptTokenizer) -> Iterator[Turn]:
    inside: list[int] | None = None
    for token_id in token_ids:
        is_control = token_id in tokenizer.control_ids
        name = tokenizer.token_text(token_id) if is_control else ""
        if name in (BEGIN, END):
            if inside is not None:
                yield _turn(tokenizer.decode(inside))
            inside = [] if name == BEGIN else None
        elif inside is not None:
            inside.append(token_id)
    if inside is not None:
        yield _turn(tokenizer.decode(inside))


def _turn(text: str) -> Turn:
    role, _, said = text.partition("\n")
    return Turn(role, said)


def read_tools(turns: Sequence[Turn]) -> tuple[Mapping[str, Any], ...]:
    """The schemas that the prompt shows: a line of JSON each, between `<tools>` and `</tools>`."""
    system = next((turn.text for turn in turns if turn.role == "system"), "")
    _, tag, rest = system.rpartition("\n<tools>\n")
    lines = rest.partition("\n</tools>")[0].splitlines() if tag else []
    return tuple(filter(None, map(_function, lines)))


def _function(line: str) -> Mapping[str, Any] | None:
    try:
        loaded = json.loads(line)
    except ValueError:
        return None
    function = loaded.get("function", loaded) if isinstance(loaded, dict) else None
    is_named = isinstance(function, dict) and isinstance(function.get("name"), str)
    return function if is_named else None
