"""What an engine answers to the questions of `transport.control`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import WorkerError
from hypic_sdk.transport.control import Ask, Question


def answer_of(ask: Ask, engine: Engine) -> Any:
    """The plain value that answers a question.

    Raises:
        PinBudgetExhausted: to PIN, if it would be more than may be pinned.
    """
    match ask.question:
        case Question.PROBE:
            return engine.probe(ask.parts, ask.namespace)
        case Question.DELETE:
            engine.delete(ask.parts, ask.namespace)
            return None
        case Question.DIGESTS:
            return engine.entry_digests(ask.parts, ask.namespace)
        case Question.USAGE:
            return _usage(engine)
        case _:
            return _about_keeping(ask, engine)


def _usage(engine: Engine) -> dict[str, Any]:
    """The store's books, and beside them what this engine has switched on."""
    counts, steps = engine.graph_counts, engine.step_counts
    return {
        **asdict(engine.usage()),
        "shadow": None if engine.shadow is None else asdict(engine.shadow.books.facts()),
        "graphs": None if counts is None else counts.facts(),
        "steps": None if steps is None else steps.facts(),
    }


def _about_keeping(ask: Ask, engine: Engine) -> Any:
    match ask.question:
        case Question.LOOK:
            looks = engine.look(ask.parts, ask.namespace)
            return [(one.held.value, one.num_bytes, one.is_pinned) for one in looks]
        case Question.PIN:
            return engine.pin(ask.parts, ask.namespace)
        case Question.UNPIN:
            return engine.unpin(ask.parts, ask.namespace)
        case Question.PRIORITY:
            return engine.set_priority(ask.parts, ask.number, ask.namespace)
        case Question.LIMIT:
            return engine.set_limit(ask.namespace, ask.number)
        case Question.HOLDINGS:
            return asdict(engine.holdings(ask.namespace))
        case Question.CLEAR:
            removal = engine.clear(ask.namespace)
            return removal.removed + removal.deferred
        case Question.RESUME:
            return None if engine.shadow is None else engine.shadow.books.reset()
    raise WorkerError(f"no answer to {ask.question.value}")
