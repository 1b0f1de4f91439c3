"""`create_segment_documents_chain`: the stuff chain, its documents known as segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import LanguageModelLike
from langchain_core.output_parsers import BaseOutputParser, StrOutputParser
from langchain_core.prompts import (
    BasePromptTemplate,
    PromptTemplate,
    aformat_document,
    format_document,
)
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.langchain.registering import know
from hypic_sdk.integrations.langchain.wrapped import registries_in

DOCUMENT_PROMPT = PromptTemplate.from_template("{page_content}")


def create_segment_documents_chain(
    llm: LanguageModelLike,
    prompt: BasePromptTemplate[Any],
    *,
    output_parser: BaseOutputParser[Any] | None = None,
    document_prompt: BasePromptTemplate[str] | None = None,
    document_separator: str = "\n\n",
    document_variable_name: str = "context",
) -> Runnable[dict[str, Any], Any]:
    """Arguments, prompt and answer as of `create_stuff_documents_chain`.

    The contents of the documents become segments; what `document_prompt` writes around them, such
    as a running number, does not belong to them, so another order costs no hit.

    Args:
        llm: a `ChatHypic` or `HypicLLM`, also with arguments bound to it, with fallbacks, retries,
            alternatives or a parser; with another model this is the stuff chain and nothing else.
    Raises:
        ValueError: the prompt has no variable of that name.
    """
    if document_variable_name not in prompt.input_variables:
        raise ValueError(
            f"the prompt must accept {document_variable_name!r}, it has {prompt.input_variables}"
        )
    template, registries = document_prompt or DOCUMENT_PROMPT, registries_in(llm)

    def stuff(inputs: Mapping[str, Any]) -> str:
        documents = _known(registries, inputs[document_variable_name])
        return document_separator.join(format_document(one, template) for one in documents)

    async def astuff(inputs: Mapping[str, Any]) -> str:
        documents = _known(registries, inputs[document_variable_name])
        return document_separator.join([await aformat_document(one, template) for one in documents])

    stuffing = RunnablePassthrough.assign(
        **{document_variable_name: RunnableLambda(stuff, astuff)}
    ).with_config(run_name="format_inputs")
    chain = stuffing | prompt | llm | (output_parser or StrOutputParser())
    return chain.with_config(run_name="segment_documents_chain")


def _known(registries: Iterable[SegmentRegistry], documents: list[Document]) -> list[Document]:
    for registry in registries:
        know(registry, documents)
    return documents
