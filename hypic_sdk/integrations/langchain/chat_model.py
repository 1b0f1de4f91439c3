"""`ChatHypic`: a chat model over a server, or over whatever has the client's calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import run_in_executor

from hypic_sdk.integrations.asking import chats, chunks, whole
from hypic_sdk.integrations.langchain.errors import core_errors
from hypic_sdk.integrations.langchain.messages import MessageWriter
from hypic_sdk.integrations.langchain.profile import profile_of_any, served_profile
from hypic_sdk.integrations.langchain.replies import ReplyReader, chat_result
from hypic_sdk.integrations.langchain.served import ServedModel
from hypic_sdk.integrations.langchain.tools import Method, Tool, structured, tool_options
from hypic_sdk.integrations.served import one_reply
from hypic_sdk.wire.models import ModelObject


class ChatHypic(ServedModel, BaseChatModel):
    """Chats over cached documents; a prompt's known texts become segments, its text stays.

    The way to the model is that of `Served`; `registry` is filled by a retriever, a chain or a
    middleware of this adapter.
    """

    @property
    def _llm_type(self) -> str:
        return "hypic-chat"

    def _resolve_model_profile(self) -> ModelProfile:
        return profile_of_any()

    def load_profile(self) -> ModelProfile:
        """Ask the server what its model can do: window and tools; `profile` has it from then on.

        Raises:
            ConnectionFailed: nobody is there.
        """
        with core_errors():
            return self._told(self.calls().models.list().data)

    async def aload_profile(self) -> ModelProfile:
        """The same without blocking an event loop."""
        calls = self.async_calls()
        if calls is None:
            return await run_in_executor(None, self.load_profile)
        with core_errors():
            return self._told((await calls.models.list()).data)

    def _told(self, models: Iterable[ModelObject]) -> ModelProfile:
        self.profile = {**(self.profile or {}), **served_profile(models, self.model)}
        return self.profile

    def bind_tools(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: Any = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The same model with tools to call.

        Args:
            tools: core's tools, functions, pydantic or TypedDict classes, or schemas.
            tool_choice: "auto", "none", "any", the name of a tool, or OpenAI's object.
            strict: whether arguments are held to their schemas.
        """
        options = tool_options(tools, tool_choice, strict=strict, parallel=parallel_tool_calls)
        return self.bind(**options, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        method: Method = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """The same model, its answers values of a schema: a pydantic object, else a dictionary.

        Args:
            method: "json_schema" (the server says nothing else), "function_calling", "json_mode".
            include_raw: a dictionary of `raw`, `parsed` and `parsing_error` instead.
        Raises:
            ValueError: a method, or an argument, that there is not.
        """
        if kwargs:
            raise ValueError(f"unexpected arguments: {', '.join(sorted(kwargs))}")
        return structured(self, schema, method=method, include_raw=include_raw, strict=strict)

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """The tokens of the whole prompt, template included."""
        options = {} if not tools else tool_options(tools, None, strict=None, parallel=None)
        with core_errors():
            written = MessageWriter().messages(messages)
            return int(self.calls().tokenize(messages=written, **options).count)

    def _request(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, given: dict[str, Any]
    ) -> tuple[MessageWriter, dict[str, Any]]:
        """The arguments of the client's call."""
        writer = MessageWriter(self._known())
        return writer, {"messages": writer.messages(messages), **self._call_options(stop, given)}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with core_errors():
            writer, request = self._request(messages, stop, kwargs)
            return chat_result(self.calls().chat.completions.create(**request), writer.cuts)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with core_errors():
            writer, request = self._request(messages, stop, kwargs)
            return chat_result(await whole(self, chats, request), writer.cuts)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with core_errors():
            writer, request = self._request(messages, stop, kwargs)
            one_reply(request)
            reader = ReplyReader()
            with self.calls().chat.completions.stream(**request) as stream:
                for chunk in stream:
                    for said in reader.feed(chunk):
                        if run_manager is not None:
                            run_manager.on_llm_new_token(said.text, chunk=said)
                        yield said
            yield reader.last(writer.cuts)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with core_errors():
            writer, request = self._request(messages, stop, kwargs)
            one_reply(request)
            reader = ReplyReader()
            async with aclosing(chunks(self, chats, request)) as stream:
                async for chunk in stream:
                    for said in reader.feed(chunk):
                        if run_manager is not None:
                            await run_manager.on_llm_new_token(said.text, chunk=said)
                        yield said
            yield reader.last(writer.cuts)
