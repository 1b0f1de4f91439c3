"""Replies, whole or in chunks, shaped like OpenAI's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import GetJsonSchemaHandler, SerializerFunctionWrapHandler, model_serializer

from hypic_sdk.wire.parse import ReplyModel
from hypic_sdk.wire.report import CacheReport, Usage

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

FinishReason = Literal["stop", "length", "tool_calls"]


class SparseReply(ReplyModel):
    """Without nulls: clients join `delta["content"]` where there is one."""

    always_said: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _only_what_is_said(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {
            name: value
            for name, value in write(self).items()
            if value is not None or name in self.always_said
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """That of the fields; of what a function writes nothing would be known."""
        bare = {name: value for name, value in schema.items() if name != "serialization"}
        return handler(cast("CoreSchema", bare))


class TopLogprob(ReplyModel):
    """One of the best tokens at a place.  `bytes` are those of its text."""

    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(ReplyModel):
    """The chosen token at a place, and the best ones."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: tuple[TopLogprob, ...] = ()


class Logprobs(ReplyModel):
    """Log-probabilities of the tokens of a reply or of a chunk."""

    content: list[TokenLogprob]


class PromptLogprob(ReplyModel):
    """One of the tokens that could stand at a place of the prompt; the likeliest has rank 1."""

    logprob: float
    rank: int  # among all ids
    decoded_token: str


class CalledFunction(ReplyModel):
    """A function that the model wants called; `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class ReplyToolCall(ReplyModel):
    """A call of a tool; its result is sent back under the same id."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ReplyMessage(SparseReply):
    """The assistant's message.  `content` is null where it says nothing but calls.

    `reasoning_content` and `tool_calls` are left out where there are none.
    """

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ReplyToolCall] | None = None

    always_said: ClassVar[frozenset[str]] = frozenset({"content"})


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of the prompt the alternatives by their ids; none for the first."""


class ChatChoice(ReplyModel):
    """One reply."""

    index: int = 0
    message: ReplyMessage
    finish_reason: FinishReason
    logprobs: Logprobs | None = None


class ChatCompletion(ReplyModel):
    """A whole reply.  `hypic` is the cache report, in Python also called `cache`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    hypic: CacheReport | None = None

    @property
    def cache(self) -> CacheReport | None:
        """What the prompt cost; none if the request asked for no report."""
        return self.hypic

    @property
    def request_id(self) -> str:
        """The id by which logs know this request."""
        return self.id


class FunctionDelta(SparseReply):
    """What a chunk adds to a call: its name first, then its arguments."""

    name: str | None = None
    arguments: str = ""


class ToolCallDelta(SparseReply):
    """A piece of the call at place `index` of the message; the first has its id and type."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(SparseReply):
    """What a chunk adds to the assistant's message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(ReplyModel):
    """A chunk of one reply."""

    index: int = 0
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: Logprobs | None = None


class ChatCompletionChunk(ReplyModel):
    """A chunk of a stream; the last one has no choices, but usage and cache report."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    prompt_logprobs: PromptLogprobs | None = None
    hypic: CacheReport | None = None

    @property
    def cache(self) -> CacheReport | None:
        """The cache report, on the last chunk."""
        return self.hypic

    @property
    def request_id(self) -> str:
        """The id by which logs know this request."""
        return self.id


class CompletionLogprobs(ReplyModel):
    """Log-probabilities of a plain completion, as parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]  # none: of a prompt's first token
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(ReplyModel):
    """One reply to a plain prompt, or a chunk of it."""

    index: int = 0
    text: str
    finish_reason: FinishReason | None = None
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(ReplyModel):
    """A reply to a plain prompt; chunks of a stream have the same shape."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    hypic: CacheReport | None = None

    @property
    def cache(self) -> CacheReport | None:
        """What the prompt cost; none if the request asked for no report."""
        return self.hypic

    @property
    def request_id(self) -> str:
        """The id by which logs know this request."""
        return self.id


class CancelledRequest(ReplyModel):
    """The answer to a cancel; what is over, or was never there, is not `cancelled`."""

    id: str
    object: Literal["request.cancelled"] = "request.cancelled"
    cancelled: bool
