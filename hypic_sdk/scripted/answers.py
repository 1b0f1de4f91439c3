"""What a scripted engine answers to the questions of `transport.control`."""

from __future__ import annotations

from typing import Any

from hypic_sdk.errors import WorkerError
from hypic_sdk.scripted.books import Books
from hypic_sdk.transport.control import Ask, Question


def answer_of(ask: Ask, books: Books) -> Any:
    """The plain value that answers a question.

    Raises:
        PinBudgetExhausted: to PIN, if it would be more than may be pinned.
    """
    match ask.question:
        case Question.PROBE:
            return [books.holds(part, ask.namespace) for part in ask.parts]
        case Question.DELETE:
            return books.delete(ask.parts, ask.namespace)
        case Question.USAGE:
            return books.usage()
        case Question.LOOK:
            looks = books.look(ask.parts, ask.namespace)
            return [(one.held.value, one.num_bytes, one.is_pinned) for one in looks]
        case Question.PIN:
            return books.pin(ask.parts, ask.namespace)
        case Question.UNPIN:
            return books.unpin(ask.parts, ask.namespace)
        case _:
            return _about_namespaces(ask, books)


def _about_namespaces(ask: Ask, books: Books) -> Any:
    match ask.question:
        case Question.PRIORITY:
            return books.set_priority(ask.parts, ask.number, ask.namespace)
        case Question.LIMIT:
            return books.set_limit(ask.namespace, ask.number)
        case Question.HOLDINGS:
            return books.holdings(ask.namespace)
        case Question.CLEAR:
            return books.clear(ask.namespace)
        case Question.RESUME:
            return None  # nothing is switched off here
    raise WorkerError(f"no answer to {ask.question.value}")
