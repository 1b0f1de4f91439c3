"""From a checked body to the values of the prompt room: messages, texts, segments resolved."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

from hypic_sdk.errors import RequestError, SegmentsMissing, SegmentTextMismatch
from hypic_sdk.prompt.catalog import RegisteredSegment, SegmentCatalog
from hypic_sdk.prompt.pieces import CallerText, Message
from hypic_sdk.prompt.segment import SegmentId, segment_id
from hypic_sdk.service.token_memo import TokenMemo
from hypic_sdk.wire.chat import ChatMessage, ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.parts import SegmentPart, TextPart

DOCUMENTS = -1
"""The message index of segments that come as top-level documents."""

DOCUMENT_GLUE = "\n\n"
"""Stands after each top-level document; the demo model is trained on this layout."""

_NUM_NAMED = 20  # missing ids that an error lists

Recall = Callable[[str], tuple[int, ...] | None]


@final
class Conversation:
    """Reads one request; segments that can not be resolved are told together at the end."""

    def __init__(
        self,
        catalog: SegmentCatalog,
        tokenizer_fingerprint: str,
        memo: TokenMemo,
        *,
        only_registered: bool = False,
        recall: Recall = lambda text: None,
    ) -> None:
        """
        Args:
            only_registered: refuse a segment that is not registered even if its text came along.
            recall: token ids of a reply that was given with exactly that text, if it was.
        """
        self._catalog = catalog
        self._fingerprint = tokenizer_fingerprint
        self._memo = memo
        self._only_registered = only_registered
        self._recall = recall
        self._missing: list[str] = []

    def messages(self, request: ChatRequest) -> tuple[Message, ...]:
        """The messages of a chat, documents put before the first user message's text.

        Raises:
            SegmentsMissing: naming every segment that has no text.
            SegmentTextMismatch: an id beside another text.
            RequestError: documents without a user message.
        """
        messages = [self._message(index, one) for index, one in enumerate(request.messages)]
        documents = self._documents(request)
        if documents:
            place = next((i for i, one in enumerate(messages) if one.role == "user"), None)
            if place is None:
                raise RequestError("documents need a user message to stand in", param="documents")
            asked = messages[place]
            messages[place] = replace(asked, content=(*documents, *asked.content))
        self._raise_missing()
        return tuple(messages)

    def texts(self, request: CompletionRequest) -> tuple[CallerText, ...]:
        """The parts of a plain prompt; raises as `messages` does."""
        parts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
        texts = tuple(self._part(part, 0, index) for index, part in enumerate(parts))
        self._raise_missing()
        return texts

    def _message(self, index: int, message: ChatMessage) -> Message:
        parts: Sequence[str | TextPart | SegmentPart]
        parts = [message.content] if isinstance(message.content, str) else message.content or []
        content = tuple(self._part(part, index, place) for place, part in enumerate(parts))
        if message.role == "assistant":
            content = tuple(map(self._as_said, content))
        reasoning = message.reasoning_content
        return Message(
            # the newer name of the same thing; templates know the older one
            role="system" if message.role == "developer" else message.role,
            content=content,
            reasoning=None if reasoning is None else CallerText(reasoning, message_index=index),
            extra=_extra(message),
        )

    def _as_said(self, text: CallerText) -> CallerText:
        """A reply of ours in the tokens in which it was said."""
        if text.segment_id is not None:
            return text
        return replace(text, token_ids=self._recall(text.text))

    def _documents(self, request: ChatRequest) -> tuple[CallerText, ...]:
        texts: list[CallerText] = []
        numbered = request.documents_numbering == "brackets"
        for index, document in enumerate(request.documents):
            if numbered:
                number = f"[{index + 1}] "
                texts.append(CallerText(number, message_index=DOCUMENTS, content_index=index))
            texts.append(self._segment(document.segment_id, document.text, DOCUMENTS, index))
            texts.append(CallerText(DOCUMENT_GLUE, message_index=DOCUMENTS, content_index=index))
        return tuple(texts)

    def _part(self, part: str | TextPart | SegmentPart, message: int, place: int) -> CallerText:
        if isinstance(part, SegmentPart):
            return self._segment(part.segment_id, part.text, message, place)
        text = part if isinstance(part, str) else part.text
        return CallerText(text, message_index=message, content_index=place)

    def _segment(self, id_: str | None, text: str | None, message: int, place: int) -> CallerText:
        """A segment by id, text or both.  A missing one is noted, and stands as an empty text."""
        own_id = None if text is None else segment_id(text)
        if id_ is not None and own_id not in (None, id_):
            raise SegmentTextMismatch(
                f"{id_} is not the id of the text beside it, which is {own_id}",
                segment_id=id_,
                text_id=own_id,
            )
        wanted = SegmentId(id_) if id_ is not None else own_id
        assert wanted is not None, "the wire model wants an id or a text"
        known = self._catalog.get(wanted)
        if known is None and (text is None or self._only_registered):
            self._missing.append(wanted)
            return CallerText("", wanted)
        exact = known.text if known is not None else text
        assert exact is not None, "a segment without text is missing"
        return CallerText(
            exact,
            wanted,
            token_ids=self._token_ids(wanted, exact, known),
            message_index=message,
            content_index=place,
        )

    def _token_ids(
        self, id_: SegmentId, text: str, known: RegisteredSegment | None
    ) -> tuple[int, ...]:
        if known is not None and known.tokenizer_fingerprint == self._fingerprint:
            return known.token_ids
        return self._memo.token_ids(id_, text)

    def _raise_missing(self) -> None:
        if not self._missing:
            return
        missing = list(dict.fromkeys(self._missing))
        named = ", ".join(missing[:_NUM_NAMED])
        more = f" and {len(missing) - _NUM_NAMED} more" if len(missing) > _NUM_NAMED else ""
        raise SegmentsMissing(
            f"not registered: {named}{more}", segment_ids=missing, num_missing=len(missing)
        )


def _extra(message: ChatMessage) -> dict[str, Any]:
    """What a template may read of a message besides its text."""
    extra: dict[str, Any] = {}
    if message.name is not None:
        extra["name"] = message.name
    if message.tool_call_id is not None:
        extra["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        extra["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return extra


def _arguments(text: str) -> Any:
    """Arguments as templates want them: an object where the text is one, else the text."""
    if not text.strip():
        return {}  # how some clients write that there are none
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return loaded if isinstance(loaded, dict) else text
