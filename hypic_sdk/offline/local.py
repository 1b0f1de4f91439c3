"""`LocalHypic`, and how its model is found and opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, final

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.models.hub import HubId, model_folder
from hypic_sdk.offline.calls import (
    LocalCache,
    LocalChat,
    LocalCompletions,
    LocalPrompts,
    tokenized,
    within,
)
from hypic_sdk.offline.port import LocalPort
from hypic_sdk.offline.segments import LocalSegments
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.memory_catalog import MemoryCatalog
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service import ModelFacts, Service
from hypic_sdk.service.about import AboutModels
from hypic_sdk.service.sampling_defaults import sampling_defaults
from hypic_sdk.wire.models import TokenizeReply
from hypic_sdk.wire.shorthand import ChatOptions, either_request

if TYPE_CHECKING:
    from hypic_sdk.engine.worker import LocalWorker
    from hypic_sdk.models.weights import OnProgress
    from hypic_sdk.scripted import Script

DEMO_NAME = "hypic-reader"
SCRIPTED_NAME = "scripted"


@final
class LocalHypic:
    """One model in this process, with the calls of `Hypic` by the same names.

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
        tokenizer = tokenizer.bounded(settings.max_context_tokens)
        service = Service(
            tokenizer=tokenizer,
            template=ChatTemplate.from_folder(folder, tokenizer),
            catalog=MemoryCatalog(tokenizer.encode_segment, tokenizer.fingerprint),
            worker=LocalPort(worker),
            model_name=model_name or default_name,
            facts=ModelFacts(
                config.reuse,
                settings.conv_width,
                settings.max_context_tokens,
                is_checked=config.shadow is not None,
            ),
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
        ready = opened.ready
        tokenizer = opened.tokenizer.bounded(ready.max_context_tokens)
        service = Service(
            tokenizer=tokenizer,
            template=opened.template,
            catalog=MemoryCatalog(tokenizer.encode_segment, tokenizer.fingerprint),
            worker=opened.worker,
            model_name=SCRIPTED_NAME,
            facts=ModelFacts(opened.config.reuse, ready.conv_width, ready.max_context_tokens),
        )
        return cls.over(service, opened.worker.close)

    def _attach(self, service: Service, close: Callable[[], None]) -> None:
        self.service = service
        self.segments = LocalSegments(service)
        self.models = AboutModels(service)
        self.prompts = LocalPrompts(service)
        self.cache = LocalCache(service)
        self._limit(None)
        self._life = _Life(close)

    def _limit(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self.chat = LocalChat(self.service, timeout_s)
        self.completions = LocalCompletions(self.service, timeout_s)

    def with_options(
        self, *, timeout_s: float | None = None, max_retries: int | None = None
    ) -> LocalHypic:
        """The same model with another limit of time; what is left out stays.

        Closing either closes both.

        Args:
            timeout_s: for a whole reply.
            max_retries: as the client has it; here nothing is tried again, for nothing gets lost.
        """
        other = LocalHypic.__new__(LocalHypic)
        other.__dict__.update(self.__dict__)
        other._limit(within(timeout_s, self._timeout_s))
        return other

    def tokenize(
        self,
        *,
        messages: Iterable[Mapping[str, Any]] | None = None,
        prompt: str | Iterable[Any] | None = None,
        **options: Unpack[ChatOptions],
    ) -> TokenizeReply:
        """The token ids that a chat, or a plain prompt, comes to.

        Raises:
            TypeError: both `messages` and `prompt`, or none.
        """
        return tokenized(self.service, either_request(messages, prompt, options))

    def is_ready(self) -> bool:
        """Whether requests are taken: until it is closed."""
        return self._life.goes_on

    def close(self) -> None:
        """Stop the worker; what is in flight ends with WorkerLost.  A second time does nothing."""
        self._life.end()

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
class _Life:
    """Ends once, whoever of those that share it ends it."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close: Callable[[], None] | None = close

    @property
    def goes_on(self) -> bool:
        return self._close is not None

    def end(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()


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
