"""One answer of several workers: what each question's answers add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypic_sdk.transport.control import Held, Question

# the more is there of a segment, the later it stands
_BY_PRESENCE = (Held.NOT_KEPT, Held.COLD, Held.EVICTED, Held.FILLING, Held.WARM)


def joined_answer(question: Question, answers: Sequence[Any]) -> Any:
    """Join the answers of all workers (at least one) to one of the same form."""
    match question:
        case Question.PROBE:
            return [any(held) for held in zip(*answers, strict=True)]
        case Question.LOOK:
            return [_best_look(looks) for looks in zip(*answers, strict=True)]
        case Question.USAGE | Question.HOLDINGS:
            return _summed(answers)
        case Question.CLEAR:
            return sum(answers)
        case _:
            return None  # told to everybody, answered with nothing


def _best_look(looks: Sequence[Sequence[Any]]) -> tuple[str, int, bool]:
    """Where the most is there; pinned if it is anywhere."""
    best = max(looks, key=lambda look: _BY_PRESENCE.index(Held(look[0])))
    return best[0], best[1], any(look[2] for look in looks)


def _summed(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: _sum([answer[name] for answer in answers]) for name in answers[0]}


def _sum(values: Sequence[Any]) -> Any:
    """The sum of numbers, or of numbers by name; none of what no worker has."""
    told = [value for value in values if value is not None]
    if not told:
        return None
    return _summed(told) if isinstance(told[0], Mapping) else sum(told)
