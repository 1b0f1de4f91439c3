"""What a server tells about its model, and tokens of a prompt."""

from __future__ import annotations

from typing import Literal

from hypic_sdk.wire.parse import ReplyModel


class ModelAbilities(ReplyModel):
    """What a client may need to know before it asks."""

    modes: tuple[str, ...] = ("pic", "off")
    reuse_mode: str
    seam: str
    min_segment_tokens: int
    max_context_tokens: int | None
    chat: bool  # whether it has a chat template
    tools: bool = False
    json_schema: bool = True


class ModelObject(ReplyModel):
    """One model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "hypic"
    hypic: ModelAbilities


class ModelList(ReplyModel):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class TokenizeReply(ReplyModel):
    """`POST /v1/tokenize`: the token ids that a chat or plain prompt comes to."""

    object: Literal["tokens"] = "tokens"
    count: int
    tokens: list[int]
