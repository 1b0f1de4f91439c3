"""`POST /v1/prompts/explain`: what a prompt would come to, told without running it."""

from __future__ import annotations

from typing import Literal

from hypic_sdk.wire.parse import ReplyModel
from hypic_sdk.wire.shadow import ShadowStats

WarningCode = Literal[
    "below_min_tokens",
    "running_number",
    "whitespace_differs",
    "tokens_differ_from_joint",
    "segment_last",
    "no_segments",
    "auto_segment_capped",
    "reuse_switched_off",
]


class ExplainedPart(ReplyModel):
    """One part of the prompt.

    `part` is (message, content part), `document` the place among top-level documents, as in a
    cache report.  `expected`: "hit" and "cold" are what would become of a segment now, "live" is
    computed in place.
    """

    role: Literal["leading", "inner", "glue", "trailing"]
    segment_id: str | None = None
    part: tuple[int, int] | None = None
    document: int | None = None
    start: int
    tokens: int
    expected: Literal["hit", "cold", "live"]
    reused_tokens: int = 0  # of a hit


class ExplainWarning(ReplyModel):
    """Something that costs hits or changes tokens; `message` says what to do about it."""

    code: WarningCode
    message: str
    segment_id: str | None = None


class Explanation(ReplyModel):
    """Parts, tokens and the expected cost.  Chain entries are not looked at: less may be live."""

    object: Literal["prompt.explanation"] = "prompt.explanation"
    prompt_tokens: int
    cached_tokens: int
    live_tokens: int
    cold_tokens: int  # computed for new entries, before the prompt itself
    parts: list[ExplainedPart]
    warnings: list[ExplainWarning]
    shadow: ShadowStats | None = None  # what live checks found; none: there are none
