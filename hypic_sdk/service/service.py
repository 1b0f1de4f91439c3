"""The road of the text wing: resolve, render, segment, submit, and back to text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

from hypic_sdk.prompt.catalog import SegmentCatalog
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.grammar import check_grammar
from hypic_sdk.prompt.pieces import CallerText, RenderedPrompt
from hypic_sdk.prompt.segment import PromptPart, Role, segment_id
from hypic_sdk.prompt.segmenter import parts_prompt, segment_prompt
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.async_stream import AsyncReplyStream
from hypic_sdk.service.explain import Explainer
from hypic_sdk.service.formats import reply_grammar
from hypic_sdk.service.growing_reply import GrowingReply, PreparedRequest
from hypic_sdk.service.ids import new_id
from hypic_sdk.service.model_facts import ModelFacts
from hypic_sdk.service.prompt_maker import PromptMaker, refuse_unsupported
from hypic_sdk.service.reply import ReplyAssembler
from hypic_sdk.service.sampling import generate_sampling, request_sampling, stops_of
from hypic_sdk.service.segment_service import SegmentService
from hypic_sdk.service.session_memory import SessionMemory
from hypic_sdk.service.shapes import ChatShape, CompletionShape
from hypic_sdk.service.stream import ChunkStream, ReplyStream
from hypic_sdk.service.token_memo import TokenMemo
from hypic_sdk.service.warm_job import WarmJob
from hypic_sdk.service.worker_port import WorkerPort
from hypic_sdk.transport.control import Question
from hypic_sdk.transport.messages import EngineRequest, SamplingParams, WarmRequest
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.explain import Explanation
from hypic_sdk.wire.generate import GenerateRequest
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk, Completion
from hypic_sdk.wire.shadow import shadow_of


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
        tokenizer = tokenizer.bounded(self.facts.max_context_tokens)
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
        self.shows_tools = self._prompts.shows_tools
        self.segments = SegmentService(
            tokenizer, self._memo, catalog, worker, namespace=namespace, now_s=now_s
        )
        self.chat_shape = ChatShape(model_name, tokenizer)
        self.completion_shape = CompletionShape(model_name, tokenizer)

    # -- generation

    def chat(self, request: ChatRequest, timeout_s: float | None = None) -> ChatCompletion:
        """Answer a chat.  Raises DeadlineExceeded: not over after `timeout_s`."""
        return self.chat_shape.whole(self.stream(self.prepare_chat(request), timeout_s).drain())

    def chat_chunks(
        self, request: ChatRequest, timeout_s: float | None = None
    ) -> ChunkStream[ChatCompletionChunk, ChatCompletion]:
        """Answer a chat chunk by chunk; it is on its way when this returns."""
        stream = self.stream(self.prepare_chat(request), timeout_s)
        return ChunkStream(stream, self.chat_shape.chunks(stream.reply), self.chat_shape.whole)

    def complete(self, request: CompletionRequest, timeout_s: float | None = None) -> Completion:
        """Continue a plain prompt.  Raises DeadlineExceeded: not over after `timeout_s`."""
        stream = self.stream(self.prepare_completion(request), timeout_s)
        return self.completion_shape.whole(stream.drain())

    def complete_chunks(
        self, request: CompletionRequest, timeout_s: float | None = None
    ) -> ChunkStream[Completion, Completion]:
        """Continue a plain prompt chunk by chunk; it is on its way when this returns."""
        stream = self.stream(self.prepare_completion(request), timeout_s)
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
        """What a prompt would come to; asks the worker what is warm and runs nothing.

        Raises:
            WorkerLost: nobody is there to tell of live checks, where there are any.
        """
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
        shadow = shadow_of(self.usage()) if self.facts.is_checked else None
        return explainer.explain(rendered, reuse=request.hypic.mode != "off", shadow=shadow)

    def prepare_generate(
        self, request: GenerateRequest, request_id: str | None = None
    ) -> PreparedRequest:
        """The same of a text with separators: what stands before each of them is a segment."""
        refuse_unsupported(request.unsupported())
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

    def stream(self, prepared: PreparedRequest, timeout_s: float | None = None) -> ReplyStream:
        """Submit a prepared request; the engine ends one that is not over after `timeout_s`."""
        if timeout_s is not None:
            message = replace(prepared.message, timeout_s=timeout_s)
            prepared = replace(prepared, message=message)
        return ReplyStream(self._growing(prepared), self._worker)

    def async_stream(self, prepared: PreparedRequest) -> AsyncReplyStream:
        """A stream for the running event loop; its `submit` is still to be called."""
        return AsyncReplyStream(self._growing(prepared), self._worker)

    def _growing(self, prepared: PreparedRequest) -> GrowingReply:
        return GrowingReply(prepared, self._tokenizer, self._remember)

    def usage(self) -> Mapping[str, Any]:
        """The books of the worker's store, by the names of the wire's `CacheStats`."""
        usage: Mapping[str, Any] = self._worker.ask(Question.USAGE)
        return usage

    def cancel(self, request_id: str) -> None:
        """End a request; unknown ones are ignored."""
        self._worker.cancel(request_id)

    def _prepare(
        self,
        request: ChatRequest | CompletionRequest,
        rendered: RenderedPrompt,
        request_id: str | None,
    ) -> PreparedRequest:
        rules = self._prompts.reply_rules(request, rendered)
        grammar = reply_grammar(
            request,
            self._tokenizer,
            form=self._prompts.call_format,
            begins_reasoning=rules.begins_reasoning,
        )
        if grammar is not None:
            check_grammar(grammar)
        sampling = request_sampling(request, self._sampling, grammar)
        message = EngineRequest(
            request_id=request_id or new_id("req"),
            prompt=segment_prompt(rendered, self._tokenizer),
            sampling=sampling,
            namespace=self._namespace,
            # of a cached token there are no logits
            reuse=request.hypic.mode != "off" and sampling.prompt_logprobs is None,
            session_id=request.hypic.session_id,
            num_replies=request.n or 1,
        )
        return PreparedRequest(
            message,
            stops=request.stops,
            num_logprobs=request.num_logprobs,
            report_level=request.hypic.report,
            created_at=int(self._now_s()),
            include_usage=request.include_usage,
            degraded=rendered.degraded,
            rules=rules,
            echo=isinstance(request, CompletionRequest) and request.echo,
            tells_prompt=request.prompt_logprobs is not None,
        )

    def _remember(self, prepared: PreparedRequest, reply: ReplyAssembler) -> None:
        session_id = prepared.message.session_id
        # a cut text, or one whose tokens say more than it, would not be these tokens
        if session_id is None or reply.was_cut or self._tokenizer.has_hidden(reply.token_ids):
            return
        self._sessions.remember(session_id, reply.text, reply.token_ids)
