"""`ChatHypic`: a chat model over a server, or over whatever has the client's calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr

from hypic_sdk.client import AsyncHypic, Hypic
from hypic_sdk.client.async_client import DEFAULT_TIMEOUT_S
from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.langchain.errors import core_errors
from hypic_sdk.integrations.langchain.messages import MessageWriter
from hypic_sdk.integrations.langchain.replies import ReplyReader, chat_result


class ChatHypic(BaseChatModel):
    """Chats over cached documents; a prompt's known texts become segments, its text stays.

    `base_url` names a server (none: `HYPIC_BASE_URL`, else this machine); or `client` is a `Hypic`,
    a `LocalHypic` or anything with their calls.  Without an `async_client` beside such a `client`,
    asynchronous calls run it in a thread.

    `registry` holds the texts that are looked for in plain prompts while `auto_segment` is on; a
    retriever or chain of this adapter fills it.
    """

    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: list[str] | None = None
    streaming: bool = False

    base_url: str | None = None
    api_key: SecretStr | None = None
    timeout: float = DEFAULT_TIMEOUT_S
    max_retries: int = 2

    hypic: dict[str, Any] = Field(default_factory=dict)
    """Options of the wire's `hypic` field: `mode`, `session_id`, `on_missing`, `report`."""
    auto_segment: bool = True
    registry: SegmentRegistry = Field(default_factory=SegmentRegistry, exclude=True)
    client: Any = Field(default=None, exclude=True)
    async_client: Any = Field(default=None, exclude=True)

    _own_client: Hypic | None = PrivateAttr(default=None)
    _own_async_client: AsyncHypic | None = PrivateAttr(default=None)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @property
    def _llm_type(self) -> str:
        return "hypic-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"base_url": self.base_url, "hypic": self.hypic, **self._options()}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = "hypic"
        params["ls_model_name"] = kwargs.get("model") or self.model or "default"
        return params

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """The tokens of the whole prompt, template included, where the client can count them."""
        tokenize = getattr(self.calls(), "tokenize", None)
        if tokenize is None:
            return super().get_num_tokens_from_messages(messages, tools)
        with core_errors():
            return int(tokenize(messages=MessageWriter().messages(messages)).count)

    def calls(self) -> Any:
        """The client that waits; one over `base_url` is made at the first call."""
        if self.client is not None:
            return self.client
        if self._own_client is None:
            self._own_client = Hypic(self.base_url, **self._connection())
        return self._own_client

    def async_calls(self) -> Any:
        """The client on an event loop; none: there is only one that waits."""
        if self.async_client is not None or self.client is not None:
            return self.async_client
        if self._own_async_client is None:
            self._own_async_client = AsyncHypic(self.base_url, **self._connection())
        return self._own_async_client

    def close(self) -> None:
        """Close the waiting client that was made here; one that was given is the giver's."""
        client, self._own_client = self._own_client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close both clients that were made here."""
        client, self._own_async_client = self._own_async_client, None
        if client is not None:
            await client.close()
        self.close()

    def _connection(self) -> dict[str, Any]:
        key = self.api_key
        return {
            "api_key": None if key is None else key.get_secret_value(),
            "timeout_s": self.timeout,
            "max_retries": self.max_retries,
        }

    def _options(self) -> dict[str, Any]:
        names = ("model", "temperature", "max_tokens", "top_p", "top_k", "seed", "stop")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def _request(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, given: dict[str, Any]
    ) -> tuple[MessageWriter, dict[str, Any]]:
        """The arguments of the client's call; those of this call overrule the model's own."""
        writer = MessageWriter(self.registry if self.auto_segment else None)
        options = {**self._options(), **({} if stop is None else {"stop": stop}), **given}
        options.pop("stream", None)
        hypic = {**self.hypic, **options.pop("hypic", {})}
        return writer, {
            "messages": writer.messages(messages),
            **options,
            **({"hypic": hypic} if hypic else {}),
        }

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
        calls = self.async_calls()
        if calls is None:
            return await super()._agenerate(messages, stop, run_manager, **kwargs)
        with core_errors():
            writer, request = self._request(messages, stop, kwargs)
            return chat_result(await calls.chat.completions.create(**request), writer.cuts)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with core_errors():
            writer, request = self._request(messages, stop, kwargs)
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
        calls = self.async_calls()
        if calls is None:
            async for said in super()._astream(messages, stop, run_manager, **kwargs):
                yield said
            return
        with core_errors():
            writer, request = self._request(messages, stop, kwargs)
            reader = ReplyReader()
            async with calls.chat.completions.stream(**request) as stream:
                async for chunk in stream:
                    for said in reader.feed(chunk):
                        if run_manager is not None:
                            await run_manager.on_llm_new_token(said.text, chunk=said)
                        yield said
            yield reader.last(writer.cuts)
