"""The road of the text wing: resolve, render, segment, submit, and back to text."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import final

from hypic_sdk.errors import SegmentNotFound, UnknownModel, UnsupportedOption
from hypic_sdk.prompt.catalog import NewSegment, RegisteredSegment, SegmentCatalog
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.pieces import RenderedPrompt
from hypic_sdk.prompt.segment import PromptPart, Role
from hypic_sdk.prompt.segmenter import parts_prompt, segment_prompt
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.conversation import Conversation
from hypic_sdk.service.reply import ReplyAssembler
from hypic_sdk.service.session_memory import SessionMemory
from hypic_sdk.service.shapes import ChatShape, CompletionShape
from hypic_sdk.service.stream import ChunkStream, PreparedRequest, ReplyStream
from hypic_sdk.service.token_memo import TokenMemo
from hypic_sdk.service.warm_job import WarmJob
from hypic_sdk.service.worker_port import WorkerPort
from hypic_sdk.transport.messages import EngineRequest, SamplingParams, WarmRequest
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk, Completion
from hypic_sdk.wire.segments import (
    DeletedSegment,
    RegisterRequest,
    SegmentIds,
    SegmentList,
    SegmentObject,
    SegmentState,
)


@final
class Service:
    """One model, its segments and its worker, behind calls that take and give wire models.

    Blocking only while it waits for the worker; safe to call from several threads.  A server on an
    event loop uses `prepare_*` and `PreparedRequest.assembler` and moves the events itself.
    """

    def __init__(
        self,
        *,
        tokenizer: PromptTokenizer,
        template: ChatTemplate | None,
        catalog: SegmentCatalog,
        worker: WorkerPort,
        model_name: str,
        namespace: str = "",
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            template: none for a model without one; it answers plain completions only.
            namespace: the tenant's share of the cache namespace.
        """
        self.model_name = model_name
        self._tokenizer = tokenizer
        self._template = template
        self._catalog = catalog
        self._worker = worker
        self._namespace = namespace
        self._now_s = now_s
        self._sessions = SessionMemory()
        self._memo = TokenMemo(tokenizer.encode_text)
        self._chat_shape = ChatShape(model_name, tokenizer)
        self._completion_shape = CompletionShape(model_name, tokenizer)

    # -- generation

    def chat(self, request: ChatRequest) -> ChatCompletion:
        """Answer a chat."""
        return self._chat_shape.whole(self.stream(self.prepare_chat(request)))

    def chat_chunks(self, request: ChatRequest) -> ChunkStream[ChatCompletionChunk, ChatCompletion]:
        """Answer a chat chunk by chunk; it is on its way when this returns."""
        stream = self.stream(self.prepare_chat(request))
        shape = self._chat_shape
        return ChunkStream(stream, shape.chunks(stream), shape.whole)

    def complete(self, request: CompletionRequest) -> Completion:
        """Continue a plain prompt."""
        return self._completion_shape.whole(self.stream(self.prepare_completion(request)))

    def complete_chunks(self, request: CompletionRequest) -> ChunkStream[Completion, Completion]:
        """Continue a plain prompt chunk by chunk; it is on its way when this returns."""
        stream = self.stream(self.prepare_completion(request))
        shape = self._completion_shape
        return ChunkStream(stream, shape.chunks(stream), shape.whole)

    def prepare_chat(self, request: ChatRequest) -> PreparedRequest:
        """Everything of a chat that comes before the engine.

        Raises:
            RequestError: whatever is wrong with it, by its class.
            ModelFileError: the chat template fails on it.
        """
        self._check(request)
        if self._template is None:
            raise UnsupportedOption(
                f"{self.model_name} has no chat template: use plain completions", param="messages"
            )
        messages = self._conversation(request).messages(request)
        rendered = self._template.render(
            messages,
            tools=() if request.tool_choice == "none" else request.tools or (),
            options=request.chat_template_kwargs,
        )
        return self._prepare(request, rendered)

    def prepare_completion(self, request: CompletionRequest) -> PreparedRequest:
        """The same of a plain prompt."""
        self._check(request)
        return self._prepare(request, parts_prompt(self._conversation(request).texts(request)))

    def stream(self, prepared: PreparedRequest) -> ReplyStream:
        """Submit a prepared request."""
        return ReplyStream(prepared, self._worker, self._tokenizer, self._remember)

    def cancel(self, request_id: str) -> None:
        """End a request; unknown ones are ignored."""
        self._worker.cancel(request_id)

    def _check(self, request: ChatRequest | CompletionRequest) -> None:
        if request.model not in (None, self.model_name):
            raise UnknownModel(
                f"no model {request.model!r} here, only {self.model_name!r}", model=request.model
            )
        unsupported = next(request.unsupported(), None)
        if unsupported is not None:
            raise UnsupportedOption(f"{unsupported} is not offered here", param=unsupported)

    def _conversation(self, request: ChatRequest | CompletionRequest) -> Conversation:
        return Conversation(
            self._catalog,
            self._tokenizer.fingerprint,
            self._memo,
            only_registered=request.hypic.on_missing == "error",
            recall=partial(self._sessions.recall, request.hypic.session_id),
        )

    def _prepare(
        self, request: ChatRequest | CompletionRequest, rendered: RenderedPrompt
    ) -> PreparedRequest:
        message = EngineRequest(
            request_id=_new_id("req"),
            prompt=segment_prompt(rendered, self._tokenizer),
            sampling=_sampling(request),
            namespace=self._namespace,
            reuse=request.hypic.mode != "off",
            session_id=request.hypic.session_id,
        )
        return PreparedRequest(
            message,
            stops=request.stops,
            num_logprobs=request.num_logprobs,
            report_level=request.hypic.report,
            created_at=int(self._now_s()),
            include_usage=request.include_usage,
        )

    def _remember(self, prepared: PreparedRequest, reply: ReplyAssembler) -> None:
        session_id = prepared.message.session_id
        # a cut text, or one whose tokens say more than it, would not be these tokens
        if session_id is None or reply.was_cut or self._tokenizer.has_hidden(reply.token_ids):
            return
        self._sessions.remember(session_id, reply.text, reply.token_ids)

    # -- segments

    def register(self, request: RegisterRequest) -> list[SegmentObject]:
        """Register texts, in order; those that were known come back as they are.

        Raises:
            RequestError, PoolExhausted: of the first text that can not be registered; those before
                it are.
        """
        return [
            self._object(*self._catalog.register(
                NewSegment(item.text, item.external_id, item.title, item.metadata),
                replace_external=request.replace_external,
            ))
            for item in request.segments
        ]  # fmt: skip

    def retrieve(self, id_: str) -> SegmentObject:
        """One registered segment.  Raises SegmentNotFound."""
        return self._object(self._find(id_))

    def find_external(self, external_id: str) -> SegmentObject:
        """The segment of a caller's own id.  Raises SegmentNotFound."""
        found = self._catalog.find_external(external_id)
        if found is None:
            raise SegmentNotFound(
                f"no segment has the external id {external_id!r}", external_id=external_id
            )
        return self._object(found)

    def list_segments(self, *, after: str | None = None, limit: int = 100) -> SegmentList:
        """A page of the registered segments, oldest first."""
        page = self._catalog.page(after=after, limit=limit)
        data = [self._object(segment) for segment in page.segments]
        return SegmentList(data=data, has_more=page.has_more, last_id=data[-1].id if data else None)

    def lookup(self, request: SegmentIds) -> dict[str, SegmentState]:
        """Which segments are registered, and which are warm; nothing is touched."""
        found = {id_: self._catalog.get(id_) for id_ in request.segment_ids}
        known = [segment for segment in found.values() if segment is not None]
        parts = [self._part(segment) for segment in known]
        held = dict(
            zip(
                [segment.id for segment in known],
                self._worker.probe(parts, self._namespace) if parts else (),
                strict=True,
            )
        )
        return {
            id_: SegmentState(state="unknown")
            if segment is None
            else SegmentState(
                state="warm" if held[segment.id] else "registered", tokens=segment.num_tokens
            )
            for id_, segment in found.items()
        }

    def delete(self, id_: str) -> DeletedSegment:
        """Forget a segment: its text, its entry, and every chain that contains it.

        Raises:
            SegmentNotFound: there is none.
        """
        segment = self._find(id_)
        self._worker.delete([self._part(segment)], self._namespace)
        return DeletedSegment(id=segment.id, deleted=self._catalog.delete(segment.id))

    def warm(self, request: SegmentIds) -> WarmJob:
        """Put registered segments into the public pool, in the background.

        Raises:
            SegmentNotFound: naming the first that is not registered.
        """
        ids = dict.fromkeys(request.segment_ids)
        parts = tuple(self._part(self._find(id_)) for id_ in ids)
        message = WarmRequest(_new_id("warm"), parts, self._namespace)
        return WarmJob(message, self._worker, created_at=int(self._now_s()))

    def _find(self, id_: str) -> RegisteredSegment:
        segment = self._catalog.get(id_)
        if segment is None:
            raise SegmentNotFound(f"not registered: {id_}", segment_ids=[id_], num_missing=1)
        return segment

    def _part(self, segment: RegisteredSegment) -> PromptPart:
        ids = segment.token_ids
        if segment.tokenizer_fingerprint != self._tokenizer.fingerprint:
            ids = self._memo.token_ids(segment.id, segment.text)
        return PromptPart(Role.INNER, ids, segment.id)

    def _object(self, segment: RegisteredSegment, created: bool | None = None) -> SegmentObject:
        return SegmentObject(
            id=segment.id,
            external_id=segment.external_id,
            title=segment.title,
            metadata=dict(segment.metadata),
            tokens=segment.num_tokens,
            created_at=segment.created_at,
            created=created,
        )


def _sampling(request: ChatRequest | CompletionRequest) -> SamplingParams:
    """Sampling values; what the caller left out is as `SamplingParams` has it."""
    defaults = SamplingParams()
    given_k = request.top_k if request.top_k is not None else defaults.top_k
    return SamplingParams(
        max_tokens=defaults.max_tokens if request.token_limit is None else request.token_limit,
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        # some clients write "off" as -1
        top_k=max(given_k, 0),
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        seed=request.seed,
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        logprobs=request.num_logprobs,
    )


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
