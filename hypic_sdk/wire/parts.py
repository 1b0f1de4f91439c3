"""The parts of a message or prompt, and documents beside it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from hypic_sdk.wire import limits
from hypic_sdk.wire.parse import WireModel


def has_utf8(text: str) -> str:
    """The text as it is.  Raises ValueError for one that no UTF-8 can carry."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate at character {error.start} has no UTF-8 form") from None
    return text


Text = Annotated[str, Field(max_length=limits.MAX_TEXT_CHARS), AfterValidator(has_utf8)]
FullText = Annotated[Text, Field(min_length=1)]
Name = Annotated[
    str, Field(min_length=1, max_length=limits.MAX_NAME_CHARS), AfterValidator(has_utf8)
]
SEGMENT_ID_PATTERN = r"^seg_[a-z2-7]{32}$"
SegmentIdText = Annotated[str, Field(pattern=SEGMENT_ID_PATTERN)]


class TextPart(WireModel):
    """Plain text: live, unless a chain covers it."""

    type: Literal["text"] = "text"
    text: Text


class SegmentPart(WireModel):
    """A segment: its id, its text, or both (then they must belong together).

    `title` is the caller's own and is not shown to the model.
    """

    type: Literal["segment"] = "segment"
    segment_id: SegmentIdText | None = None
    text: FullText | None = None
    title: Name | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.segment_id is None and self.text is None:
            raise ValueError("a segment needs segment_id, text or both")
        return self


class DocumentItem(WireModel):
    """A document beside the messages: put before the first user message's text, as a segment."""

    segment_id: SegmentIdText | None = None
    text: FullText | None = None
    title: Name | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.segment_id is None and self.text is None:
            raise ValueError("a document needs segment_id, text or both")
        return self


ContentPart = Annotated[TextPart | SegmentPart, Field(discriminator="type")]
Content = Text | Annotated[list[ContentPart], Field(max_length=limits.MAX_PARTS)]
