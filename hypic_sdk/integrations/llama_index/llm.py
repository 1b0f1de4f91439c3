"""`Hypic`: an LLM over a server, or over whatever has the client's calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
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
from pydantic import Field, PrivateAttr, SecretStr

from hypic_sdk.client.async_client import DEFAULT_TIMEOUT_S
from hypic_sdk.integrations.clients import Clients
from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.llama_index.asking import Asking
from hypic_sdk.integrations.llama_index.replies import as_completion
from hypic_sdk.integrations.llama_index.tool_calls import selections, single_call, tool_options
from hypic_sdk.wire.models import ModelObject

_OPTIONS = ("model", "temperature", "max_tokens", "top_p", "top_k", "seed", "stop")


class Hypic(FunctionCallingLLM):
    """Answers over cached documents; a prompt's known texts become segments, its text stays.

    `base_url` names a server (none: `HYPIC_BASE_URL`, else this machine); or `client` is a
    `hypic_sdk.Hypic`, a `LocalHypic` or anything with their calls.  Without an `async_client`
    beside such a `client`, asynchronous calls run it in threads.

    `registry` holds the texts that are looked for in plain prompts while `auto_segment` is on; the
    query engine, synthesizer, postprocessor and register of this adapter fill it.

    `context_window`, `is_chat_model` and `is_function_calling_model` are those of the served model
    unless they are given; it is asked once.
    """

    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: list[str] | None = None

    context_window: int | None = None
    is_chat_model: bool | None = None
    is_function_calling_model: bool | None = None

    base_url: str | None = None
    api_key: SecretStr | None = Field(default=None, exclude=True)
    timeout: float = DEFAULT_TIMEOUT_S
    max_retries: int = 2

    hypic: dict[str, Any] = Field(default_factory=dict)
    """Options of the wire's `hypic` field: `mode`, `session_id`, `on_missing`, `report`."""
    auto_segment: bool = True
    registry: SegmentRegistry = Field(default_factory=SegmentRegistry, exclude=True)
    client: Any = Field(default=None, exclude=True)
    async_client: Any = Field(default=None, exclude=True)

    _clients: Clients = PrivateAttr()
    _served: ModelObject | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        """Nothing is connected before the first call."""
        super().model_post_init(context)
        key = self.api_key
        self._clients = Clients(
            self.client,
            self.async_client,
            base_url=self.base_url,
            api_key=None if key is None else key.get_secret_value(),
            timeout_s=self.timeout,
            max_retries=self.max_retries,
        )

    def __reduce__(self) -> Any:
        """Another process connects anew; its registry begins empty."""
        if self.client is not None or self.async_client is not None:
            raise TypeError(
                "a Hypic over a given client lives in this process only: give it base_url, or do "
                "not use num_workers"
            )
        values = {name: getattr(self, name) for name in type(self).model_fields}
        for name in ("registry", "callback_manager", "rate_limiter"):
            values.pop(name, None)
        return partial(type(self), **values), ()

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
            models = getattr(self._clients.calls(), "models", None)
            self._take_models(() if models is None else models.list().data)
        return self._metadata()

    async def aload_metadata(self) -> LLMMetadata:
        """The same without blocking the event loop; `metadata` then asks no more."""
        models = getattr(self._clients.async_calls(), "models", None)
        if models is not None and self._must_ask():
            self._take_models((await models.list()).data)
        return self.metadata

    def _must_ask(self) -> bool:
        told = (self.context_window, self.is_chat_model, self.is_function_calling_model)
        return self._served is None and any(one is None for one in told)

    def _take_models(self, models: Iterable[ModelObject]) -> None:
        by_id = {one.id: one for one in models}
        # a request for a model that is not there is refused by the server, with its reason
        self._served = by_id.get(self.model or "") or next(iter(by_id.values()), None)

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

    def calls(self) -> Any:
        """The client that waits; one over `base_url` is made at the first call."""
        return self._clients.calls()

    def async_calls(self) -> Any | None:
        """The client on an event loop; none: there is only one that waits."""
        return self._clients.async_calls()

    def close(self) -> None:
        """Close the waiting client that was made here; one that was given is the giver's."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close both clients that were made here."""
        await self._clients.aclose()

    def _options(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _OPTIONS}
        return {name: value for name, value in values.items() if value is not None}

    def _asking(self, given: Mapping[str, Any]) -> Asking:
        """A request; the options of this call overrule the model's own."""
        options = {**self._options(), **given}
        options.pop("stream", None)
        hypic = {**self.hypic, **options.pop("hypic", {})}
        if hypic:
            options["hypic"] = hypic
        return Asking(self._clients, self.registry if self.auto_segment else None, options)

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
