"""From a checked body to a rendered prompt: options, segments, template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

from hypic_sdk.errors import ModelFileError, RequestError, UnknownModel, UnsupportedOption
from hypic_sdk.prompt.catalog import SegmentCatalog
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.pieces import Message, RenderedPrompt, TemplateText
from hypic_sdk.prompt.reply_reader import CLOSE_THINKING, OPEN_THINKING, ReplyRules
from hypic_sdk.prompt.segmenter import parts_prompt
from hypic_sdk.prompt.tool_calls import tool_format
from hypic_sdk.service.auto_segments import CatalogSegmenter
from hypic_sdk.service.conversation import Conversation
from hypic_sdk.service.formats import shown_tools
from hypic_sdk.service.session_memory import SessionMemory
from hypic_sdk.service.token_memo import TokenMemo
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest


def refuse_unsupported(names: Iterator[str]) -> None:
    """Raises UnsupportedOption: for the first name, if there is any."""
    name = next(names, None)
    if name is not None:
        raise UnsupportedOption(f"{name} is not offered here", param=name)


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
        self._known = CatalogSegmenter(catalog, tokenizer_fingerprint, memo)
        source = "" if template is None else template.source
        self.call_format = tool_format(source)
        self._reasons = CLOSE_THINKING in source
        self._shows_tools = "tools" in source
        self._takes_effort = "reasoning_effort" in source

    @property
    def shows_tools(self) -> bool:
        """Whether the model is told of tools, so that it can call them."""
        return self._shows_tools

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
        if request.shown_tools and not self._shows_tools:
            raise UnsupportedOption("the chat template of this model shows no tools", param="tools")
        options = self._template_options(request)
        messages, is_capped = self._conversation(request).messages(request), False
        if request.hypic.auto_segment == "exact":
            messages, is_capped = self._known.messages(messages)
        try:
            rendered = self._template.render(
                messages,
                tools=shown_tools(request),
                options=options,
            )
        except ModelFileError as error:
            _blame(request, messages, error)
            raise
        return _marked(rendered, is_capped)

    def plain(self, request: CompletionRequest) -> RenderedPrompt:
        """The prompt of a plain completion; raises RequestError."""
        self._check(request)
        texts, is_capped = self._conversation(request).texts(request), False
        if request.hypic.auto_segment == "exact":
            texts, is_capped = self._known.texts(texts)
        return _marked(parts_prompt(texts), is_capped)

    def reply_rules(
        self, request: ChatRequest | CompletionRequest, rendered: RenderedPrompt
    ) -> ReplyRules:
        """What to look for in the replies to a rendered prompt."""
        if not isinstance(request, ChatRequest):
            return ReplyRules()
        last = rendered.pieces[-1] if rendered.pieces else None
        opened = isinstance(last, TemplateText) and last.text.rstrip().endswith(OPEN_THINKING)
        return ReplyRules(
            reasons=self._reasons or opened,
            begins_reasoning=opened,
            tools=shown_tools(request) or None,
            max_calls=1 if request.parallel_tool_calls is False else None,
        )

    def _check(self, request: ChatRequest | CompletionRequest) -> None:
        if request.model not in (None, self._model_name):
            raise UnknownModel(
                f"no model {request.model!r} here, only {self._model_name!r}", model=request.model
            )
        refuse_unsupported(request.unsupported())

    def _template_options(self, request: ChatRequest) -> dict[str, Any]:
        """Variables of the template; what is named among them itself goes first."""
        if request.reasoning_effort is None:
            return request.chat_template_kwargs
        if not self._takes_effort:
            raise UnsupportedOption(
                "the chat template of this model knows no reasoning_effort; what it knows is set "
                "by chat_template_kwargs",
                param="reasoning_effort",
            )
        return {"reasoning_effort": request.reasoning_effort, **request.chat_template_kwargs}

    def _conversation(self, request: ChatRequest | CompletionRequest) -> Conversation:
        return Conversation(
            self._catalog,
            self._fingerprint,
            self._memo,
            only_registered=request.hypic.on_missing == "error",
            recall=partial(self._sessions.recall, request.hypic.session_id),
        )


def _marked(rendered: RenderedPrompt, is_capped: bool) -> RenderedPrompt:
    return replace(rendered, degraded="auto_segment_capped") if is_capped else rendered


def _blame(request: ChatRequest, messages: Sequence[Message], error: ModelFileError) -> None:
    """Raise RequestError if what a template failed on may be the caller's own values."""
    calls = [call for message in messages for call in message.extra.get("tool_calls", ())]
    if not all(isinstance(call["function"]["arguments"], dict) for call in calls):
        raise RequestError(
            f"the arguments of a call are no JSON object, and {error.message}", param="messages"
        ) from error
    if request.chat_template_kwargs:
        raise RequestError(
            f"with these options {error.message}", param="chat_template_kwargs"
        ) from error
