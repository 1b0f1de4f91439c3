"""`SegmentSynthesizer`: an answer over whole nodes, each of them a segment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.constants import DEFAULT_NUM_OUTPUTS

# the framework's own documents import it from here, though it is not re-exported by name
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events.synthesis import (
    GetResponseEndEvent,
    GetResponseStartEvent,
)
from llama_index.core.llms.llm import LLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.prompts.base import BasePromptTemplate
from llama_index.core.prompts.default_prompt_selectors import (
    DEFAULT_REFINE_PROMPT_SEL,
    DEFAULT_TEXT_QA_PROMPT_SEL,
)
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.types import RESPONSE_TEXT_TYPE
from llama_index.core.utils import get_tokenizer
from pydantic import BaseModel

from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.llama_index.llm import Hypic
from hypic_sdk.integrations.llama_index.packing import packed
from hypic_sdk.integrations.registering import learn, note

SEPARATOR = "\n\n"

MARGIN_TOKENS = 128
"""For the chat template, and for edges where tokens of a whole prompt are cut in another way."""

_dispatcher = get_dispatcher(__name__)

Step: TypeAlias = tuple[BasePromptTemplate, dict[str, Any]]
"""One call of the model: a template and what goes into it."""


class SegmentSynthesizer(BaseSynthesizer):
    """Puts nodes into the prompt whole and in order, as `compact` does where all of them fit.

    Those that do not fit into one prompt are asked of in groups of whole nodes, the answer so far
    going along, as `refine` does.  A node is never split: one that is too long on its own is
    refused by the server, with both numbers.

    Over another LLM it works as well, without segments.
    """

    def __init__(
        self,
        llm: LLM | None = None,
        callback_manager: CallbackManager | None = None,
        text_qa_template: BasePromptTemplate | None = None,
        refine_template: BasePromptTemplate | None = None,
        output_cls: type[BaseModel] | None = None,
        streaming: bool = False,
        empty_response: str | None = None,
    ) -> None:
        """Arguments as of the framework's own synthesizers.

        Raises:
            ValueError: `output_cls` together with `streaming`.
        """
        if streaming and output_cls is not None:
            raise ValueError("an answer of output_cls comes whole: streaming must be off")
        super().__init__(
            llm=llm,
            callback_manager=callback_manager,
            streaming=streaming,
            output_cls=output_cls,
            empty_response=empty_response,
        )
        self._text_qa_template = text_qa_template or DEFAULT_TEXT_QA_PROMPT_SEL
        self._refine_template = refine_template or DEFAULT_REFINE_PROMPT_SEL

    def _get_prompts(self) -> PromptDictType:
        return {
            "text_qa_template": self._text_qa_template,
            "refine_template": self._refine_template,
        }

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._text_qa_template = prompts.get("text_qa_template", self._text_qa_template)
        self._refine_template = prompts.get("refine_template", self._refine_template)

    def get_response(
        self,
        query_str: str,
        text_chunks: Sequence[str],
        prev_response: str | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TEXT_TYPE:
        """The answer over whole texts.

        Args:
            prev_response: an answer to go on from.
            response_kwargs: more variables of the templates.
        """
        _dispatcher.event(GetResponseStartEvent(query_str=query_str, text_chunks=[*text_chunks]))
        texts = self._learnt(text_chunks)
        variables = {"query_str": query_str, **response_kwargs}
        sizes = None if self._surely_fit(variables, texts) else self._sizes(texts)
        *before, last = self._contexts(variables, texts, sizes)
        answer: Any = prev_response
        for context in before:
            answer = self._ask(*self._step(variables, context, answer))
        step = self._step(variables, last, answer)
        answer = self._llm.stream(step[0], **step[1]) if self._streaming else self._ask(*step)
        _dispatcher.event(GetResponseEndEvent())
        return answer or self._empty_response

    async def aget_response(
        self,
        query_str: str,
        text_chunks: Sequence[str],
        prev_response: str | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TEXT_TYPE:
        """See `get_response`."""
        _dispatcher.event(GetResponseStartEvent(query_str=query_str, text_chunks=[*text_chunks]))
        texts = self._learnt(text_chunks)
        variables = {"query_str": query_str, **response_kwargs}
        if (own := self._own_llm()) is not None:
            await own.aload_metadata()
        sizes = None if self._surely_fit(variables, texts) else await self._asizes(texts)
        *before, last = self._contexts(variables, texts, sizes)
        answer: Any = prev_response
        for context in before:
            answer = await self._aask(*self._step(variables, context, answer))
        template, values = self._step(variables, last, answer)
        if self._streaming:
            answer = await self._llm.astream(template, **values)
        else:
            answer = await self._aask(template, values)
        _dispatcher.event(GetResponseEndEvent())
        return answer or self._empty_response

    def _own_llm(self) -> Hypic | None:
        llm = self._llm.llm if isinstance(self._llm, StructuredLLM) else self._llm
        return llm if isinstance(llm, Hypic) else None

    def _learnt(self, chunks: Sequence[str]) -> list[str]:
        """The texts of nodes, each a segment from now on; empty ones are left out."""
        texts = [text for text in map(str.strip, chunks) if text]
        if (own := self._own_llm()) is not None:
            learn(own.registry, texts)
        return texts

    def _surely_fit(self, variables: Mapping[str, Any], texts: Sequence[str]) -> bool:
        """Whether all of it fits into one prompt even if each byte were a token."""
        return _num_bytes(SEPARATOR.join(texts)) <= self._room_tokens(variables)

    def _room_tokens(self, variables: Mapping[str, Any]) -> int:
        """Tokens that one prompt has for nodes, at least."""
        metadata = self._llm.metadata
        empty = {"context_str": "", "context_msg": "", "existing_answer": ""}
        templates = (self._text_qa_template, self._refine_template)
        written = [one.format(llm=self._llm, **empty, **variables) for one in templates]
        answer = DEFAULT_NUM_OUTPUTS if metadata.num_output < 0 else metadata.num_output
        # two answers: the one to come, and the one to go on from
        kept = 2 * answer + MARGIN_TOKENS
        return metadata.context_window - kept - max(map(_num_bytes, written))

    def _sizes(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text: our server's word, or a guess by the framework's own tokenizer."""
        if (own := self._own_llm()) is None:
            tokenizer = get_tokenizer()
            return [len(tokenizer(text)) for text in texts]
        segments = own.calls().segments.create_many(learn(own.registry, texts))
        return _sizes(texts, segments, own.registry)

    async def _asizes(self, texts: Sequence[str]) -> list[int]:
        own = self._own_llm()
        calls = None if own is None else own.async_calls()
        if own is None or calls is None:
            return await asyncio.to_thread(self._sizes, texts)
        segments = await calls.segments.create_many(learn(own.registry, texts))
        return _sizes(texts, segments, own.registry)

    def _contexts(
        self, variables: Mapping[str, Any], texts: Sequence[str], sizes: Sequence[int] | None
    ) -> list[str]:
        """What goes into each prompt, at least one; without sizes all of it fits into one."""
        if sizes is None or not texts:
            return [SEPARATOR.join(texts)]
        edges = _num_bytes(SEPARATOR)
        groups = packed([size + edges for size in sizes], self._room_tokens(variables))
        return [SEPARATOR.join(texts[at] for at in group) for group in groups]

    def _step(self, variables: Mapping[str, Any], context: str, answer: Any) -> Step:
        if answer is None:
            return self._text_qa_template, {**variables, "context_str": context}
        existing = answer.model_dump_json() if isinstance(answer, BaseModel) else str(answer)
        return self._refine_template, {
            **variables,
            "context_msg": context,
            "existing_answer": existing,
        }

    def _ask(self, template: BasePromptTemplate, values: Mapping[str, Any]) -> Any:
        if self._output_cls is None:
            return self._llm.predict(template, **values)
        return self._llm.structured_predict(self._output_cls, template, **values)

    async def _aask(self, template: BasePromptTemplate, values: Mapping[str, Any]) -> Any:
        if self._output_cls is None:
            return await self._llm.apredict(template, **values)
        return await self._llm.astructured_predict(self._output_cls, template, **values)


def _sizes(texts: Sequence[str], segments: Sequence[Any], registry: SegmentRegistry) -> list[int]:
    """Tokens of each text; what is too short for a segment can not have more than its bytes."""
    sizes = {segment.id: segment.tokens for segment in segments}
    ids = note(registry, learn(registry, texts), segments)
    return [sizes[ids[text]] if text in ids else _num_bytes(text) for text in texts]


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8"))
