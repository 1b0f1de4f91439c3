"""Control messages besides requests and events: cancel, questions to an engine, its answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from hypic_sdk.prompt.segment import PromptPart


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End a request; its last event still comes."""

    request_id: str


class Question(Enum):
    """What an engine can be asked between two of its steps."""

    PROBE = "probe"  # which of `parts` are held -> list of bool
    DELETE = "delete"  # drop the entries of `parts` and every chain that contains one
    USAGE = "usage"  # bytes of the store by state -> dict


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; the answer carries the same `ask_id`."""

    ask_id: int
    question: Question
    parts: tuple[PromptPart, ...] = ()
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question: a plain value, or an error payload."""

    ask_id: int
    value: Any = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine has loaded its model and takes requests."""

    model_fingerprint: str
    vocab_size: int
    max_context_tokens: int
    eos_token_ids: tuple[int, ...]
    conv_width: int  # of the short convs: what a seam must cover
    load_s: float


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine could not start; it ends after this message."""

    error: dict[str, Any]
