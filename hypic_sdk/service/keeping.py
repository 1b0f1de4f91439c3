"""What the text wing asks a worker about what it keeps, each with its type."""

from __future__ import annotations

from collections.abc import Sequence

from hypic_sdk.errors import WorkerLost
from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.service.worker_port import WorkerPort
from hypic_sdk.transport.control import EntryLook, Held, Question


def look(worker: WorkerPort, parts: Sequence[PromptPart], namespace: str) -> list[EntryLook]:
    """What there is of each segment; touches nothing."""
    if not parts:
        return []
    try:
        told = worker.ask(Question.LOOK, parts, namespace)
    except WorkerLost:  # and with it all that it held
        return [EntryLook(Held.COLD)] * len(parts)
    return [EntryLook(Held(held), num_bytes, is_pinned) for held, num_bytes, is_pinned in told]


def pin(worker: WorkerPort, parts: Sequence[PromptPart], namespace: str) -> None:
    """Keep these segments' entries, also those that are still to be made.

    Raises:
        PinBudgetExhausted: pins would take more than they may; none of these is pinned then.
    """
    if parts:
        worker.ask(Question.PIN, parts, namespace)


def unpin(worker: WorkerPort, parts: Sequence[PromptPart], namespace: str) -> None:
    """Let these segments' entries be evicted again."""
    if parts:
        worker.ask(Question.UNPIN, parts, namespace)


def set_priority(
    worker: WorkerPort, parts: Sequence[PromptPart], priority: int, namespace: str
) -> None:
    """Of two entries, the one of lower priority (0 to 99) is evicted first."""
    if parts:
        worker.ask(Question.PRIORITY, parts, namespace, priority)


def set_limit(worker: WorkerPort, namespace: str, limit_bytes: int) -> None:
    """Hold a namespace's entries to so many bytes."""
    worker.ask(Question.LIMIT, (), namespace, limit_bytes)


def cached_bytes(worker: WorkerPort, namespace: str) -> int:
    """Bytes that a namespace holds in the pools."""
    return int(worker.ask(Question.HOLDINGS, (), namespace)["num_bytes"])


def clear(worker: WorkerPort, namespace: str) -> int:
    """Drop all entries of a namespace; how many went, or go with the last request that reads them.
    """  # fmt: skip
    try:
        return int(worker.ask(Question.CLEAR, (), namespace))
    except WorkerLost:
        return 0
