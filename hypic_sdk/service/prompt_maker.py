"""From a checked body to a rendered prompt: options, segments, template."""

from __future__ import annotations

from functools import partial
from typing import final

from hypic_sdk.errors import UnknownModel, UnsupportedOption
from hypic_sdk.prompt.catalog import SegmentCatalog
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.pieces import RenderedPrompt
from hypic_sdk.prompt.segmenter import parts_prompt
from hypic_sdk.service.conversation import Conversation
from hypic_sdk.service.session_memory import SessionMemory
from hypic_sdk.service.token_memo import TokenMemo
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest


@final
class PromptMaker:
    """Renders prompts of one model and one tenant."""

    def __init__(
        self,
        *,
        model_name: str,
        template: ChatTemplate | None,
        catalog: SegmentCatalog,
        tokenizer_fingerprint: str,
        memo: TokenMemo,
        sessions: SessionMemory,
    ) -> None:
        self._model_name = model_name
        self._template = template
        self._catalog = catalog
        self._fingerprint = tokenizer_fingerprint
        self._memo = memo
        self._sessions = sessions

    def chat(self, request: ChatRequest) -> RenderedPrompt:
        """The prompt of a chat.

        Raises:
            RequestError: whatever is wrong with it, by its class.
            ModelFileError: the chat template fails on it.
        """
        self._check(request)
        if self._template is None:
            raise UnsupportedOption(
                f"{self._model_name} has no chat template: use plain completions", param="messages"
            )
        messages = self._conversation(request).messages(request)
        return self._template.render(
            messages,
            tools=() if request.tool_choice == "none" else request.tools or (),
            options=request.chat_template_kwargs,
        )

    def plain(self, request: CompletionRequest) -> RenderedPrompt:
        """The prompt of a plain completion; raises RequestError."""
        self._check(request)
        return parts_prompt(self._conversation(request).texts(request))

    def _check(self, request: ChatRequest | CompletionRequest) -> None:
        if request.model not in (None, self._model_name):
            raise UnknownModel(
                f"no model {request.model!r} here, only {self._model_name!r}", model=request.model
            )
        unsupported = next(request.unsupported(), None)
        if unsupported is not None:
            raise UnsupportedOption(f"{unsupported} is not offered here", param=unsupported)

    def _conversation(self, request: ChatRequest | CompletionRequest) -> Conversation:
        return Conversation(
            self._catalog,
            self._fingerprint,
            self._memo,
            only_registered=request.hypic.on_missing == "error",
            recall=partial(self._sessions.recall, request.hypic.session_id),
        )
