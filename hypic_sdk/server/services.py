"""A service for each tenant over one model and one worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, final

from hypic_sdk.prompt.catalog import CatalogLimits, SegmentCatalog
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.memory_catalog import MemoryCatalog
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service import ModelFacts, Service, WorkerPort
from hypic_sdk.service.sampling_defaults import sampling_defaults
from hypic_sdk.transport.messages import SamplingParams

OpenCatalog = Callable[[str, PromptTokenizer, CatalogLimits], SegmentCatalog]


@final
class ServiceFactory:
    """What `create_app` calls for each namespace.  Tenants share nothing but the worker."""

    def __init__(
        self,
        *,
        tokenizer: PromptTokenizer,
        template: ChatTemplate | None,
        worker: WorkerPort,
        model_name: str,
        facts: ModelFacts | None = None,
        sampling: SamplingParams | None = None,
        open_catalog: OpenCatalog | None = None,
    ) -> None:
        """`open_catalog`: the registry of a namespace; none: one in memory, gone with the process.
        """  # fmt: skip
        self._tokenizer = tokenizer.bounded(None if facts is None else facts.max_context_tokens)
        self._template = template
        self._worker = worker
        self._model_name = model_name
        self._facts = facts
        self._sampling = sampling
        self._open_catalog = open_catalog or _in_memory

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        worker: WorkerPort,
        *,
        model_name: str,
        facts: ModelFacts | None = None,
        sampling: SamplingParams | None = None,
        open_catalog: OpenCatalog | None = None,
    ) -> Self:
        """With the tokenizer, chat template and sampling defaults of a model folder.

        Args:
            sampling: instead of the folder's.
        Raises:
            ModelFileError: one of them can not be read.
        """
        tokenizer = PromptTokenizer.from_folder(folder)
        return cls(
            tokenizer=tokenizer,
            template=ChatTemplate.from_folder(folder, tokenizer),
            worker=worker,
            model_name=model_name,
            facts=facts,
            sampling=sampling or sampling_defaults(folder),
            open_catalog=open_catalog,
        )

    def check_model(self, vocab_size: int, end_token_ids: Sequence[int]) -> None:
        """Raises ModelFileError for a tokenizer that is not this model's."""
        self._tokenizer.check_vocab_size(vocab_size)
        self._tokenizer.check_end_tokens(end_token_ids)

    def __call__(self, namespace: str, limits: CatalogLimits | None = None) -> Service:
        """The service of a namespace, made anew; `limits` are those of its registered texts."""
        return Service(
            tokenizer=self._tokenizer,
            template=self._template,
            catalog=self._open_catalog(namespace, self._tokenizer, limits or CatalogLimits()),
            worker=self._worker,
            model_name=self._model_name,
            facts=self._facts,
            sampling=self._sampling,
            namespace=namespace,
        )


def _in_memory(namespace: str, tokenizer: PromptTokenizer, limits: CatalogLimits) -> SegmentCatalog:
    del namespace  # each has a catalog of its own anyway
    return MemoryCatalog(tokenizer.encode_segment, tokenizer.fingerprint, limits=limits)
