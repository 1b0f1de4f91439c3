"""`LocalHypic`: the same road over one worker in this process, no server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, final, overload

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import from_payload
from hypic_sdk.models.hub import HubId, model_folder
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.memory_catalog import MemoryCatalog
from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service import ChunkStream, ModelFacts, Service, WarmJob
from hypic_sdk.service.about import AboutModels
from hypic_sdk.service.sampling_defaults import sampling_defaults
from hypic_sdk.service.worker_port import Event
from hypic_sdk.transport.control import Ask, Question
from hypic_sdk.transport.messages import EngineRequest, WarmRequest
from hypic_sdk.wire.limits import MAX_SEGMENTS_PER_CALL
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.replies import ChatCompletion, ChatCompletionChunk, Completion
from hypic_sdk.wire.segments import (
    DeletedSegment,
    MetadataValue,
    RegisterRequest,
    SegmentList,
    SegmentObject,
    SegmentState,
    WarmJobObject,
)
from hypic_sdk.wire.shorthand import (
    ChatOptions,
    CompletionOptions,
    SegmentRef,
    chat_request,
    completion_request,
    id_of,
    segment_ids,
)

if TYPE_CHECKING:
    from hypic_sdk.engine.worker import LocalWorker
    from hypic_sdk.models.weights import OnProgress
    from hypic_sdk.scripted import Script

DEMO_NAME = "hypic-reader"
SCRIPTED_NAME = "scripted"


@final
class LocalHypic:
    """One model in this process, with the calls of the client.

    `segments`, `chat.completions`, `completions` and `models` are named as in the client.
    A context manager; closing it ends whatever is in flight.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        config: EngineConfig | None = None,
        model_name: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Load a model and start its worker.

        Args:
            model: a checkpoint folder, or an id of the hub (`owner/name`, `owner/name@revision`);
                none is the demo model that comes with this package.
            model_name: what replies call it; none is the folder's name, or the id.
            on_progress: called after each tensor while loading, and as bytes come from the hub.
        Raises:
            ModelFileError: a folder that is not a whole model with its tokenizer, or an id that the
                hub does not give.
            ConfigError: settings that do not fit the model.
        """
        folder, default_name = find_model(model, on_progress)
        tokenizer = PromptTokenizer.from_folder(folder)
        config = config or EngineConfig()
        worker = _open_worker(folder, tokenizer, config, on_progress)
        settings = worker.call(lambda engine: engine.describe().settings)
        service = Service(
            tokenizer=tokenizer,
            template=ChatTemplate.from_folder(folder, tokenizer),
            catalog=MemoryCatalog(tokenizer.encode_text, tokenizer.fingerprint),
            worker=_LocalPort(worker),
            model_name=model_name or default_name,
            facts=ModelFacts(config.reuse, settings.conv_width, settings.max_context_tokens),
            sampling=sampling_defaults(folder),
        )
        self._attach(service, worker.close)
        self.worker: LocalWorker | None = worker

    @classmethod
    def over(cls, service: Service, close: Callable[[], None] = lambda: None) -> Self:
        """The same calls over a service that is there already; `close` is called once."""
        self = cls.__new__(cls)
        self._attach(service, close)
        self.worker = None
        return self

    @classmethod
    def scripted(cls, script: Script | None = None, *, config: EngineConfig | None = None) -> Self:
        """No model: a table of rules answers (none: what is built in); see `hypic_sdk.scripted`."""
        from hypic_sdk.scripted import open_scripted

        opened = open_scripted(script, config or EngineConfig())
        ready, tokenizer = opened.ready, opened.tokenizer
        service = Service(
            tokenizer=tokenizer,
            template=opened.template,
            catalog=MemoryCatalog(tokenizer.encode_text, tokenizer.fingerprint),
            worker=opened.worker,
            model_name=SCRIPTED_NAME,
            facts=ModelFacts(opened.config.reuse, ready.conv_width, ready.max_context_tokens),
        )
        return cls.over(service, opened.worker.close)

    def _attach(self, service: Service, close: Callable[[], None]) -> None:
        self.service = service
        self.segments = LocalSegments(service)
        self.chat = LocalChat(service)
        self.completions = LocalCompletions(service)
        self.models = AboutModels(service)
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        """Stop the worker; what is in flight ends with WorkerLost.  A second time does nothing."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@final
class LocalSegments:
    """Registered segments: `create`, `create_many`, `retrieve`, `list`, `lookup`, `delete`."""

    def __init__(self, service: Service) -> None:
        self.warm = LocalWarm(service)
        self._service = service

    def create(
        self,
        text: str,
        *,
        external_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
        replace_external: bool = False,
        warm: Literal["none", "async", "wait"] = "none",
    ) -> SegmentObject:
        """Register one text; again, it is the same segment.

        Args:
            warm: also put it into the public pool: in the background, or before this returns.
        """
        item = {"text": text, "external_id": external_id, "title": title, "metadata": metadata}
        [segment] = self.create_many([item], replace_external=replace_external, warm=warm)
        return segment

    def create_many(
        self,
        texts: Iterable[str | Mapping[str, Any]],
        *,
        replace_external: bool = False,
        warm: Literal["none", "async", "wait"] = "none",
    ) -> tuple[SegmentObject, ...]:
        """Register texts in order: strings, or items of `text`, `external_id`, `title`, `metadata`.

        Raises:
            RequestError, PoolExhausted: of the first that can not be registered; those before it
                are.
            HypicError: with `warm="wait"`, why the first that is not warm is not; all are
                registered.
        """
        items = iter({"text": one} if isinstance(one, str) else dict(one) for one in texts)
        segments: list[SegmentObject] = []
        while batch := list(islice(items, MAX_SEGMENTS_PER_CALL)):
            body = {"segments": batch, "replace_external": replace_external}
            segments.extend(self._service.segments.register(parse(RegisterRequest, body)))
        if segments and warm != "none":
            job = self.warm.create(segments)
            if warm == "wait":
                _raise_failure(job.wait())
        return tuple(segments)

    def retrieve(self, segment: SegmentRef) -> SegmentObject:
        """One segment by its id.  Raises SegmentNotFound."""
        return self._service.segments.retrieve(id_of(segment))

    def find(self, external_id: str) -> SegmentObject:
        """One segment by the caller's own id.  Raises SegmentNotFound."""
        return self._service.segments.find_external(external_id)

    def lookup(self, segments: Iterable[SegmentRef]) -> dict[str, SegmentState]:
        """Which are registered, and which are warm now; nothing is touched."""
        return self._service.segments.lookup(segment_ids(segments))

    def delete(self, segment: SegmentRef) -> DeletedSegment:
        """Forget a segment: its text, its entry, every chain that contains it."""
        return self._service.segments.delete(id_of(segment))

    def list(self, *, after: str | None = None, limit: int = 100) -> SegmentList:
        """A page of the registered segments, oldest first."""
        return self._service.segments.list_segments(after=after, limit=limit)


@final
class LocalWarm:
    """Warm jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def create(self, segments: Iterable[SegmentRef]) -> WarmJob:
        """Put registered segments into the public pool, in the background."""
        return self._service.segments.warm(segment_ids(segments))


@final
class LocalChat:
    """`chat.completions`."""

    def __init__(self, service: Service) -> None:
        self.completions = LocalChatCompletions(service)


@final
class LocalChatCompletions:
    """Chats: `create`, whole or streamed, and `stream`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @overload
    def create(
        self, *, messages: Iterable[Mapping[str, Any]], stream: Literal[False] = ...,
        **options: Unpack[ChatOptions],
    ) -> ChatCompletion: ...  # fmt: skip

    @overload
    def create(
        self, *, messages: Iterable[Mapping[str, Any]], stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> ChunkStream[ChatCompletionChunk, ChatCompletion]: ...  # fmt: skip

    def create(
        self,
        *,
        messages: Iterable[Mapping[str, Any]],
        stream: bool = False,
        **options: Unpack[ChatOptions],
    ) -> ChatCompletion | ChunkStream[ChatCompletionChunk, ChatCompletion]:
        """Answer a chat.

        Args:
            messages: as for OpenAI; a content part may be a segment (an object, or
                `{"type": "segment", "segment_id": ..., "text": ...}`).
            stream: give chunks as they come.
            options: the fields of `ChatOptions`; `documents` (segments, texts or items) stand
                before the first user message's text.
        Raises:
            HypicError: by its class.
        """
        request = chat_request(messages, options)
        return self._service.chat_chunks(request) if stream else self._service.chat(request)

    def stream(
        self, *, messages: Iterable[Mapping[str, Any]], **options: Unpack[ChatOptions]
    ) -> ChunkStream[ChatCompletionChunk, ChatCompletion]:
        """Chunks as they come, for a `with` block: leaving it early cancels the request."""
        return self._service.chat_chunks(chat_request(messages, options))


@final
class LocalCompletions:
    """Plain prompts, without a chat template."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @overload
    def create(
        self, *, prompt: str | Iterable[Any], stream: Literal[False] = ...,
        **options: Unpack[CompletionOptions],
    ) -> Completion: ...  # fmt: skip

    @overload
    def create(
        self, *, prompt: str | Iterable[Any], stream: Literal[True],
        **options: Unpack[CompletionOptions],
    ) -> ChunkStream[Completion, Completion]: ...  # fmt: skip

    def create(
        self, *, prompt: str | Iterable[Any], stream: bool = False,
        **options: Unpack[CompletionOptions],
    ) -> Completion | ChunkStream[Completion, Completion]:  # fmt: skip
        """Continue a prompt: a text, or its parts in order (texts, segments, part objects)."""
        request = completion_request(prompt, options)
        return self._service.complete_chunks(request) if stream else self._service.complete(request)


@final
class _LocalPort:
    """A worker of this process as the text wing sees one."""

    def __init__(self, worker: LocalWorker) -> None:
        self._worker = worker

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        """Begin a request."""
        return self._worker.submit(message, on_event)

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request."""
        self._worker.cancel(request_id)

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        """Ask for the good end of one reply."""
        self._worker.finish(request_id, reply_index)

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> Sequence[bool]:
        """Which entries are held."""
        return self._worker.call(lambda engine: engine.probe(parts, namespace))

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        """The engine's answer."""
        from hypic_sdk.engine.answers import answer_of

        message = Ask(0, question, tuple(parts), namespace, number)
        return self._worker.call(lambda engine: answer_of(message, engine))

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        """Drop entries."""
        self._worker.call(lambda engine: engine.delete(parts, namespace))


def find_model(model: str | Path | None, on_progress: OnProgress | None = None) -> tuple[Path, str]:
    """The folder of a model, fetched from the hub if it is an id, and what replies call it.

    Raises:
        ModelFileError: no such folder, or an id that the hub does not give.
    """
    if model is None:
        return reader_path(), DEMO_NAME
    folder = model_folder(model, on_progress=on_progress)
    hub_id = None if Path(model).is_dir() else HubId.parse(str(model))
    return folder, folder.name if hub_id is None else hub_id.name


def _open_worker(
    folder: Path, tokenizer: PromptTokenizer, config: EngineConfig, on_progress: OnProgress | None
) -> LocalWorker:
    """Load the model and start its engine; torch is imported here and not before."""
    from hypic_sdk.engine.opening import load_engine
    from hypic_sdk.engine.worker import LocalWorker

    engine = load_engine(folder, config, on_progress)
    spec = engine.describe().spec
    tokenizer.check_vocab_size(spec.vocab_size)
    tokenizer.check_end_tokens(spec.eos_token_ids)
    return LocalWorker(engine)


def _raise_failure(job: WarmJobObject) -> None:
    """Raise what kept a segment of an ended job from being warm, if anything did."""
    if job.status != "succeeded" or job.errors:
        first = job.errors[0] if job.errors else None
        code = "request_cancelled" if first is None else first.code
        message = f"the warm job was {job.status}" if first is None else first.message
        details = {} if first is None else {"segment_id": first.segment_id}
        raise from_payload({"code": code, "message": message, "details": details})
