"""`Hypic`: an LLM over a server, or over whatever has the client's calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW, DEFAULT_NUM_OUTPUTS
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools.types import BaseTool
from pydantic import PrivateAttr

from hypic_sdk.integrations.clients import Clients
from hypic_sdk.integrations.llama_index.asking import Asking
from hypic_sdk.integrations.llama_index.replies import as_completion
from hypic_sdk.integrations.llama_index.tool_calls import selections, single_call, tool_options
from hypic_sdk.integrations.served import Served, one_reply
from hypic_sdk.wire.models import ModelObject


class Hypic(Served, FunctionCallingLLM):
    """Answers over cached documents; a prompt's known texts become segments, its text stays.

    The way to the model is that of `Served`; `registry` is filled by the query engine, synthesizer,
    postprocessor and register of this adapter.

    `context_window`, `is_chat_model` and `is_function_calling_model` are those of the served model
    unless they are given; it is asked once.
    """

    context_window: int | None = None
    is_chat_model: bool | None = None
    is_function_calling_model: bool | None = None

    _served: ModelObject | None = PrivateAttr(default=None)
    # who said so: a copy with another address has another served model
    _served_by: Clients | None = PrivateAttr(default=None)

    @classmethod
    def class_name(cls) -> str:
        """The name in serialised forms."""
        return "hypic_llm"

    @property
    def metadata(self) -> LLMMetadata:
        """What prompts are built by.

        Raises:
            ConnectionFailed: the served model is to be asked, and nobody is there.
        """
        if self._must_ask():
            # whatever has the client's calls may have fewer of them
            models = getattr(self.calls(), "models", None)
            self._take_models(() if models is None else models.list().data)
        return self._metadata()

    async def aload_metadata(self) -> LLMMetadata:
        """The same without blocking the event loop; `metadata` then asks no more."""
        models = getattr(self.async_calls(), "models", None)
        if models is not None and self._must_ask():
            self._take_models((await models.list()).data)
        return self.metadata

    def _must_ask(self) -> bool:
        told = (self.context_window, self.is_chat_model, self.is_function_calling_model)
        is_known = self._served is not None and self._served_by is self._held()
        return not is_known and any(one is None for one in told)

    def _take_models(self, models: Iterable[ModelObject]) -> None:
        by_id = {one.id: one for one in models}
        # a request for a model that is not there is refused by the server, with its reason
        self._served = by_id.get(self.model or "") or next(iter(by_id.values()), None)
        self._served_by = self._held()

    def _metadata(self) -> LLMMetadata:
        served = self._served
        able = None if served is None else served.hypic
        window = self.context_window or (able and able.max_context_tokens)
        chat, tools = self.is_chat_model, self.is_function_calling_model
        return LLMMetadata(
            context_window=window or DEFAULT_CONTEXT_WINDOW,
            num_output=self.max_tokens or DEFAULT_NUM_OUTPUTS,
            is_chat_model=(able is None or able.chat) if chat is None else chat,
            is_function_calling_model=(able is not None and able.tools) if tools is None else tools,
            model_name=self.model or (served.id if served else "unknown"),
            system_role=MessageRole.SYSTEM,
        )

    def to_payload(self) -> dict[str, Any]:
        """What events tell of this model: no key, no address, and nobody is asked."""
        return {"class_name": self.class_name(), **self._metadata().model_dump(), **self._options()}

    def _asking(self, given: Mapping[str, Any]) -> Asking:
        """A request; the options of this call overrule the model's own."""
        options = self._asked(given)
        one_reply(options)
        return Asking(self, self._known(), options)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a chat; `kwargs` are options of the wire."""
        return self._asking(kwargs).chat(messages)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a chat; cancelling the task cancels the request."""
        return await self._asking(kwargs).achat(messages)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer a chat piece by piece; closing the generator cancels the request."""
        return self._asking(kwargs).stream_chat(messages)

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        """Answer a chat piece by piece; closing the generator cancels the request."""
        return self._asking(kwargs).astream_chat(messages)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a text: as one user message, or as it stands.

        Args:
            formatted: the text is a whole prompt, no chat template is put around it; so it is as
                well for a model without one.
        """
        if not formatted and self.metadata.is_chat_model:
            return as_completion(self._asking(kwargs).chat([ChatMessage(prompt)]))
        return self._asking(kwargs).plain(prompt)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """See `complete`; cancelling the task cancels the request."""
        if not formatted and (await self.aload_metadata()).is_chat_model:
            return as_completion(await self._asking(kwargs).achat([ChatMessage(prompt)]))
        return await self._asking(kwargs).aplain(prompt)

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        """See `complete`; closing the generator cancels the request."""
        if not formatted and self.metadata.is_chat_model:
            return _as_completions(self._asking(kwargs).stream_chat([ChatMessage(prompt)]))
        return self._asking(kwargs).stream_plain(prompt)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """See `complete`; closing the generator cancels the request."""
        if not formatted and (await self.aload_metadata()).is_chat_model:
            return _as_acompletions(self._asking(kwargs).astream_chat([ChatMessage(prompt)]))
        return self._asking(kwargs).astream_plain(prompt)

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: Any = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or ())
        if user_msg is not None:
            messages.append(ChatMessage(user_msg) if isinstance(user_msg, str) else user_msg)
        options = tool_options(
            tools,
            choice=tool_choice,
            is_required=tool_required,
            allows_several=allow_parallel_tool_calls,
            is_strict=strict,
        )
        return {"messages": messages, **options, **kwargs}

    def _validate_chat_with_tools_response(
        self,
        response: ChatResponse,
        tools: Sequence[BaseTool],
        allow_parallel_tool_calls: bool = False,
        **kwargs: Any,
    ) -> ChatResponse:
        return response if allow_parallel_tool_calls else single_call(response)

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The calls in a response, also in one from the middle of a stream.

        Raises:
            ValueError: there is none, and `error_on_no_tool_call`.
        """
        calls = selections(response.message)
        if not calls and error_on_no_tool_call:
            raise ValueError(f"expected at least one tool call, got {len(calls)}")
        return calls


def _as_completions(responses: ChatResponseGen) -> CompletionResponseGen:
    for response in responses:
        yield as_completion(response)


async def _as_acompletions(responses: ChatResponseAsyncGen) -> CompletionResponseAsyncGen:
    async with aclosing(responses):
        async for response in responses:
            yield as_completion(response)
