"""`SegmentQueryEngine`: retrieve, warm, and answer over whole nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts.base import BasePromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.settings import Settings

from hypic_sdk.integrations.llama_index.llm import Hypic
from hypic_sdk.integrations.llama_index.postprocessor import SegmentWarmPostprocessor
from hypic_sdk.integrations.llama_index.synthesizer import SegmentSynthesizer

if TYPE_CHECKING:
    from pydantic import BaseModel


class SegmentQueryEngine(RetrieverQueryEngine):
    """A `RetrieverQueryEngine` with a `SegmentSynthesizer` and a `SegmentWarmPostprocessor`."""

    @classmethod
    # without the framework's response modes: there is one
    def from_args(  # type: ignore[override]
        cls,
        retriever: BaseRetriever,
        llm: LLM | None = None,
        response_synthesizer: BaseSynthesizer | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
        *,
        text_qa_template: BasePromptTemplate | None = None,
        refine_template: BasePromptTemplate | None = None,
        output_cls: type[BaseModel] | None = None,
        streaming: bool = False,
        warm: Literal["none", "async", "wait"] = "async",
    ) -> SegmentQueryEngine:
        """Arguments as of `RetrieverQueryEngine`; those of `SegmentSynthesizer` go to it.

        Args:
            llm: none: that of the framework's `Settings`.  Over another one than `Hypic` this is
                an ordinary query engine.
            response_synthesizer: another one, with options of its own.
            warm: see `SegmentWarmPostprocessor`, which is put behind the given postprocessors.
        """
        llm = llm or Settings.llm
        synthesizer = response_synthesizer or SegmentSynthesizer(
            llm=llm,
            callback_manager=callback_manager,
            text_qa_template=text_qa_template,
            refine_template=refine_template,
            output_cls=output_cls,
            streaming=streaming,
        )
        processors = list(node_postprocessors or ())
        if isinstance(llm, Hypic):
            processors.append(SegmentWarmPostprocessor(llm=llm, warm=warm))
        return cls(
            retriever=retriever,
            response_synthesizer=synthesizer,
            node_postprocessors=processors,
            callback_manager=callback_manager or Settings.callback_manager,
        )
