"""`SegmentsPlaceholder`: a prompt's place for documents, each a segment of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.messages.base import get_msg_title_repr
from langchain_core.prompts import BasePromptTemplate, PromptTemplate, format_document
from langchain_core.prompts.message import BaseMessagePromptTemplate
from langchain_core.utils.input import get_colored_text

from hypic_sdk.prompt.segment import segment_id

DOCUMENT_PROMPT = PromptTemplate.from_template("{page_content}")


class SegmentsPlaceholder(BaseMessagePromptTemplate):
    """A message of documents, for `ChatPromptTemplate.from_messages`; other models read the text.

    `SegmentsPlaceholder("context", then="{question}")` stands for one message: the documents of the
    variable `context` (or bare texts), `document_separator` behind each, and then a text with
    variables of its own.  What `document_prompt` writes around a content is outside of its segment.
    `optional`: without the variable there is nothing but the text.
    """

    variable_name: str
    then: PromptTemplate | None = None
    role: Literal["human", "system"] = "human"
    document_prompt: BasePromptTemplate[str] = DOCUMENT_PROMPT
    document_separator: str = "\n\n"
    optional: bool = False

    def __init__(
        self, variable_name: str, *, then: str | PromptTemplate | None = None, **kwargs: Any
    ) -> None:
        """`then`: the text behind the documents, a template."""
        template = PromptTemplate.from_template(then) if isinstance(then, str) else then
        super().__init__(variable_name=variable_name, then=template, **kwargs)

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Where `load` finds this class."""
        return cls.__module__.split(".")

    @property
    def input_variables(self) -> list[str]:
        """The variables that a prompt with it needs."""
        own = [] if self.optional else [self.variable_name]
        return own + ([] if self.then is None else self.then.input_variables)

    def format_messages(self, **kwargs: Any) -> list[BaseMessage]:
        """The one message; none if there is nothing in it.

        Raises:
            ValueError: the variable holds something that is neither document nor text.
        """
        given = kwargs.get(self.variable_name, []) if self.optional else kwargs[self.variable_name]
        blocks = [block for one in _several(given) for block in self._blocks(_document(one))]
        if self.then is not None:
            said = self.then.format(**{name: kwargs[name] for name in self.then.input_variables})
            blocks.append({"type": "text", "text": said})
        message = HumanMessage if self.role == "human" else SystemMessage
        return [message(content=_joined(blocks))] if blocks else []

    def pretty_repr(self, html: bool = False) -> str:
        """What `pretty_print` of a prompt shows in its place; `html`: with colours."""
        variable = "{" + self.variable_name + "}"
        title = get_msg_title_repr("Segments Placeholder", bold=html)
        shown = [get_colored_text(variable, "yellow") if html else variable]
        if self.then is not None:
            shown.append(self.then.pretty_repr(html=html))
        return "\n\n".join([title, *shown])

    def _blocks(self, document: Document) -> Iterator[dict[str, Any]]:
        written = format_document(document, self.document_prompt)
        content = document.page_content.strip()
        before, found, after = written.partition(content) if content else (written, "", "")
        yield {"type": "text", "text": before}
        if found:
            extras = {"hypic": {"segment_id": segment_id(content)}}
            yield {"type": "text", "text": content, "extras": extras}
        yield {"type": "text", "text": after + self.document_separator}


def _several(given: Any) -> Sequence[Any]:
    return [given] if isinstance(given, str | Document) else list(given)


def _document(given: Any) -> Document:
    if isinstance(given, Document):
        return given
    if isinstance(given, str):
        return Document(given)
    raise ValueError(f"documents or texts are wanted here, got {type(given).__name__}")


def _joined(blocks: Sequence[Mapping[str, Any]]) -> list[str | dict[Any, Any]]:
    """Plain texts that stand beside each other as one; empty ones fall away."""
    joined: list[dict[Any, Any]] = []
    for block in blocks:
        if joined and "extras" not in block and "extras" not in joined[-1]:
            joined[-1] = {"type": "text", "text": joined[-1]["text"] + block["text"]}
        elif block["text"]:
            joined.append(dict(block))
    return [*joined]
