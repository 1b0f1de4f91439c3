"""The road of the text wing: resolve, render, segment, submit, and back to text."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import final

from hypic_sdk.errors import HypicError, SegmentNotFound
from hypic_sdk.prompt.catalog import NewSegment, RegisteredSegment, SegmentCatalog
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.pieces import CallerText, RenderedPrompt
from hypic_sdk.prompt.segment import PromptPart, Role, segment_id
from hypic_sdk.prompt.segmenter import parts_prompt, segment_prompt
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.async_stream import AsyncReplyStream
from hypic_sdk.service.explain import Explainer
from hypic_sdk.service.growing_reply import GrowingReply, PreparedRequest
from hypic_sdk.service.model_facts import ModelFacts
from hypic_sdk.service.prompt_maker import PromptMaker
from hypic_sdk.service.reply import ReplyAssembler
from hypic_sdk.service.sampling import generate_sampling, request_sampling, stops_of
from hypic_sdk.service.session_memory import SessionMemory
from hypic_sdk.service.shapes import ChatShape, CompletionShape
from hypic_sdk.service.stream import ChunkStream, ReplyStream
from hypic_sdk.service.token_memo import TokenMemo
from hypic_sdk.service.warm_job import WarmJob
from hypic_sdk.service.worker_port import WorkerPort
from hypic_sdk.transport.messages import EngineRequest, SamplingParams, WarmRequest
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.explain import Explanation
from hypic_sdk.wire.generate import GenerateRequest
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk, Completion
from hypic_sdk.wire.segments import (
    DeletedSegment,
    DeletedSegments,
    NewSegmentItem,
    RegisterFailure,
    RegisterReply,
    RegisterRequest,
    SegmentIds,
    SegmentList,
    SegmentObject,
    SegmentState,
    SegmentUpdate,
)


@final
class Service:
    """One model, its segments and its worker, behind calls that take and give wire models.

    Blocking only while it waits for the worker; safe to call from several threads.  A server on an
    event loop calls `prepare_*` on a thread and iterates `async_stream`.
    """

    def __init__(
        self,
        *,
        tokenizer: PromptTokenizer,
        template: ChatTemplate | None,
        catalog: SegmentCatalog,
        worker: WorkerPort,
        model_name: str,
        facts: ModelFacts | None = None,
        sampling: SamplingParams | None = None,
        namespace: str = "",
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            template: none for a model without one; it answers plain completions only.
            facts: what the engine behind the worker is set to; none: the defaults.
            sampling: what a caller who says nothing gets; none: the likeliest token each time.
            namespace: the tenant's share of the cache namespace.
        """
        self.model_name = model_name
        self.facts = facts or ModelFacts()
        self._sampling = sampling or SamplingParams()
        self.created_at = int(now_s())
        self._tokenizer = tokenizer
        self.has_template = template is not None
        self._catalog = catalog
        self._worker = worker
        self._namespace = namespace
        self._now_s = now_s
        self._sessions = SessionMemory()
        self._memo = TokenMemo(tokenizer.encode_text)
        self._prompts = PromptMaker(
            model_name=model_name,
            template=template,
            catalog=catalog,
            tokenizer_fingerprint=tokenizer.fingerprint,
            memo=self._memo,
            sessions=self._sessions,
        )
        self.chat_shape = ChatShape(model_name, tokenizer)
        self.completion_shape = CompletionShape(model_name, tokenizer)

    # -- generation

    def chat(self, request: ChatRequest) -> ChatCompletion:
        """Answer a chat."""
        return self.chat_shape.whole(self.stream(self.prepare_chat(request)).drain())

    def chat_chunks(self, request: ChatRequest) -> ChunkStream[ChatCompletionChunk, ChatCompletion]:
        """Answer a chat chunk by chunk; it is on its way when this returns."""
        stream = self.stream(self.prepare_chat(request))
        return ChunkStream(stream, self.chat_shape.chunks(stream.reply), self.chat_shape.whole)

    def complete(self, request: CompletionRequest) -> Completion:
        """Continue a plain prompt."""
        return self.completion_shape.whole(self.stream(self.prepare_completion(request)).drain())

    def complete_chunks(self, request: CompletionRequest) -> ChunkStream[Completion, Completion]:
        """Continue a plain prompt chunk by chunk; it is on its way when this returns."""
        stream = self.stream(self.prepare_completion(request))
        shape = self.completion_shape
        return ChunkStream(stream, shape.chunks(stream.reply), shape.whole)

    def prepare_chat(self, request: ChatRequest, request_id: str | None = None) -> PreparedRequest:
        """Everything of a chat that comes before the engine.

        Args:
            request_id: a new one that nobody else has; none: made here.
        Raises:
            RequestError: whatever is wrong with it, by its class.
            ModelFileError: the chat template fails on it.
        """
        return self._prepare(request, self._prompts.chat(request), request_id)

    def prepare_completion(
        self, request: CompletionRequest, request_id: str | None = None
    ) -> PreparedRequest:
        """The same of a plain prompt."""
        return self._prepare(request, self._prompts.plain(request), request_id)

    def explain(self, request: ChatRequest | CompletionRequest) -> Explanation:
        """What a prompt would come to; asks the worker what is warm and runs nothing."""
        if isinstance(request, ChatRequest):
            rendered = self._prompts.chat(request)
        else:
            rendered = self._prompts.plain(request)
        explainer = Explainer(
            self._tokenizer,
            self.facts,
            probe=lambda parts: self._worker.probe(parts, self._namespace),
            is_registered=lambda id_: self._catalog.get(id_) is not None,
        )
        return explainer.explain(rendered, reuse=request.hypic.mode != "off")

    def prepare_generate(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> PreparedRequest:
        """The same of a text with separators: what stands before each of them is a segment."""
        *documents, question = request.texts or [""]
        texts = [self._whole_text(text) for text in documents] + [CallerText(question)]
        prompt = segment_prompt(parts_prompt(texts), self._tokenizer)
        message = EngineRequest(
            request_id=request_id or new_id("req"),
            prompt=prompt,
            sampling=generate_sampling(request.sampling_params),
            namespace=self._namespace,
        )
        return PreparedRequest(
            message,
            stops=stops_of(request.sampling_params),
            num_logprobs=None,
            report_level="segments",
            created_at=int(self._now_s()),
            include_usage=False,
        )

    def keep_text(self, request: GenerateRequest) -> WarmJob | None:
        """Put the text of a request without separators into the public pool; none if it has any."""
        if len(request.texts) != 1:
            return None
        text = self._whole_text(request.texts[0])
        assert text.token_ids is not None, "a whole text is tokenised"
        part = PromptPart(Role.INNER, text.token_ids, text.segment_id)
        message = WarmRequest(new_id("warm"), (part,), self._namespace)
        return WarmJob(message, self._worker, created_at=int(self._now_s()))

    def _whole_text(self, text: str) -> CallerText:
        id_ = segment_id(text)
        return CallerText(text, id_, token_ids=self._memo.token_ids(id_, text))

    def stream(self, prepared: PreparedRequest) -> ReplyStream:
        """Submit a prepared request."""
        return ReplyStream(self._growing(prepared), self._worker)

    def async_stream(self, prepared: PreparedRequest) -> AsyncReplyStream:
        """A stream for the running event loop; its `submit` is still to be called."""
        return AsyncReplyStream(self._growing(prepared), self._worker)

    def _growing(self, prepared: PreparedRequest) -> GrowingReply:
        return GrowingReply(prepared, self._tokenizer, self._remember)

    def cancel(self, request_id: str) -> None:
        """End a request; unknown ones are ignored."""
        self._worker.cancel(request_id)

    def _prepare(
        self,
        request: ChatRequest | CompletionRequest,
        rendered: RenderedPrompt,
        request_id: str | None,
    ) -> PreparedRequest:
        message = EngineRequest(
            request_id=request_id or new_id("req"),
            prompt=segment_prompt(rendered, self._tokenizer),
            sampling=request_sampling(request, self._sampling),
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
        return [self._register(item, request) for item in request.segments]

    def register_each(self, request: RegisterRequest) -> RegisterReply:
        """Register texts, in order; what is wrong with one is told beside those that are right."""
        data: list[SegmentObject] = []
        errors: list[RegisterFailure] = []
        for index, item in enumerate(request.segments):
            try:
                data.append(self._register(item, request))
            except HypicError as error:
                errors.append(
                    RegisterFailure(
                        index=index,
                        code=error.code,
                        message=error.message,
                        details=error.details,
                    )
                )
        return RegisterReply(data=data, errors=tuple(errors))

    def _register(self, item: NewSegmentItem, request: RegisterRequest) -> SegmentObject:
        new = NewSegment(item.text, item.external_id, item.title, item.metadata)
        replace_external = request.replace_external
        return self._object(*self._catalog.register(new, replace_external=replace_external))

    def update(self, id_: str, change: SegmentUpdate) -> SegmentObject:
        """Say something else about a registered text.

        Raises:
            SegmentNotFound: there is none.
            RequestError: an external id that names another text.
        """
        new = NewSegment(self._find(id_).text, change.external_id, change.title, change.metadata)
        segment, _ = self._catalog.register(new, replace_external=change.replace_external)
        return self._object(segment)

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

    def delete_many(self, request: SegmentIds) -> DeletedSegments:
        """Forget several; unknown ones are told as not deleted."""
        found = [self._catalog.get(id_) for id_ in dict.fromkeys(request.segment_ids)]
        known = [segment for segment in found if segment is not None]
        if known:
            self._worker.delete([self._part(segment) for segment in known], self._namespace)
        deleted = {segment.id for segment in known if self._catalog.delete(segment.id)}
        ids = dict.fromkeys(request.segment_ids)
        return DeletedSegments(data=[DeletedSegment(id=id_, deleted=id_ in deleted) for id_ in ids])

    def warm(self, request: SegmentIds) -> WarmJob:
        """Put registered segments into the public pool, in the background.

        Raises:
            SegmentNotFound: naming the first that is not registered.
        """
        ids = dict.fromkeys(request.segment_ids)
        parts = tuple(self._part(self._find(id_)) for id_ in ids)
        message = WarmRequest(new_id("warm"), parts, self._namespace)
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


def new_id(kind: str) -> str:
    """An id that nobody else has: `req_...`, `warm_...`."""
    return f"{kind}_{secrets.token_hex(12)}"
