"""Twelve documents in three orders: what an application sent, and what it ought to have sent."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.offline import LocalHypic

NAMES = tuple(DOCUMENTS)[:12]
TEXTS = tuple(DOCUMENTS[name] for name in NAMES)
QUESTION = "How many kilograms does the Fenwold clock weigh?"
ORDERS: tuple[tuple[str, ...], ...] = (
    TEXTS,
    TEXTS[::-1],
    tuple(random.Random(5).sample(TEXTS, len(TEXTS))),
)


class Noting:
    """A client whose chats are noted as they are sent."""

    def __init__(self, client: Any, noted: list[dict[str, Any]] | None = None) -> None:
        self._client = client
        self.noted: list[dict[str, Any]] = [] if noted is None else noted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def chat(self) -> Noting:
        return Noting(self._client.chat, self.noted)

    @property
    def completions(self) -> Noting:
        return Noting(self._client.completions, self.noted)

    def create(self, **request: Any) -> Any:
        self.noted.append(request)
        return self._client.create(**request)


@dataclass(frozen=True)
class Answered:
    """What an application got, and the messages that its model was sent."""

    answer: str
    num_prompt_tokens: int
    report: dict[str, Any]

    @property
    def statuses(self) -> list[str]:
        return [one["status"] for one in self.report["segments"]]


def by_hand(text: str, documents: Iterable[str]) -> list[dict[str, Any]]:
    """A text in parts, cut at the documents that stand in it in this order."""
    parts: list[dict[str, Any]] = []
    for document in documents:
        before, found, text = text.partition(document)
        assert found, document
        if before:
            parts.append({"type": "text", "text": before})
        parts.append({"type": "segment", "text": document})
    return [*parts, {"type": "text", "text": text}] if text else parts


def whole_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def check(
    sent: dict[str, Any],
    expected: Sequence[dict[str, Any]],
    order: Sequence[str],
    answered: Answered,
    alone: LocalHypic,
) -> None:
    """No prompt was edited, and the answer is that of `LocalHypic` to the same prompt by hand.

    Args:
        sent: the request that the adapter made.
        expected: the messages as the framework writes them for any model, in plain texts.
        alone: an engine that has nothing to do with the application's.
    """
    assert [whole_text(one.get("content")) for one in sent["messages"]] == [
        one["content"] for one in expected
    ]
    assert len(answered.statuses) == answered.report["auto_segments"] == len(order)
    messages = [
        {**one, "content": by_hand(one["content"], order)} if TEXTS[0] in one["content"] else one
        for one in expected
    ]
    options = {name: sent[name] for name in ("tools", "temperature", "max_tokens") if name in sent}
    own = alone.chat.completions.create(messages=messages, **options)
    assert own.usage.prompt_tokens == answered.num_prompt_tokens
    assert own.choices[0].message.content == answered.answer


def forget_all(client: Any) -> None:
    """What another application left behind, also in the pools."""
    client.segments.delete_many(client.segments.create_many(TEXTS))
