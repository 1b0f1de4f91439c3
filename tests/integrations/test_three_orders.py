"""The same twelve documents in three orders through three applications, over the packaged model.

Each document is a hit after its first use, no prompt is edited, and answers are `LocalHypic`'s.
`tests/standard/test_agents.py` has LangChain's own agent besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from llama_index.core import ChatPromptTemplate as LlamaPrompt
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.callbacks import EventPayload
from llama_index.core.schema import TextNode

from hypic_sdk import Hypic, LocalHypic
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.langchain import (
    ChatHypic,
    HypicSegmentRetriever,
    create_segment_documents_chain,
)
from hypic_sdk.integrations.llama_index import Hypic as LlamaHypic
from hypic_sdk.integrations.llama_index import SegmentQueryEngine
from tests.integrations.llama_index.paths import Callbacks
from tests.integrations.llama_index.shelf import Shelf as LlamaShelf
from tests.integrations.served_process import serving
from tests.integrations.three_orders import (
    ORDERS,
    QUESTION,
    TEXTS,
    Answered,
    Noting,
    check,
    forget_all,
)
from tests.server.demo_server import DemoServer, demo_server

Expected = list[dict[str, Any]]
App = Callable[[Noting, Sequence[str]], tuple[Answered, Expected]]

STUFFED = ChatPromptTemplate.from_messages([("system", SYSTEM), ("user", "{context}\n\n{input}")])
OPTIONS: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12}


class Shelf(BaseRetriever):
    """Finds its documents in their order."""

    order: list[str]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(text) for text in self.order]


def of_message(message: AIMessage) -> Answered:
    tokens = message.usage_metadata["input_tokens"]
    return Answered(message.text, tokens, message.response_metadata["hypic"])


def stuff_chain(client: Noting, order: Sequence[str]) -> tuple[Answered, Expected]:
    chat = ChatHypic(client=client, **OPTIONS)
    retriever = HypicSegmentRetriever(retriever=Shelf(order=[*order]), chat=chat, warm="none")
    answering = create_segment_documents_chain(
        chat, STUFFED, output_parser=RunnableLambda(lambda message: message)
    )
    said = ({"context": retriever, "input": RunnablePassthrough()} | answering).invoke(QUESTION)
    return of_message(said), [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "\n\n".join([*order, QUESTION])},
    ]


def retriever_tool(client: Noting, order: Sequence[str]) -> tuple[Answered, Expected]:
    """What an agent says to its model once the model has asked for the tool."""
    chat = ChatHypic(client=client, **OPTIONS)
    retriever = HypicSegmentRetriever(retriever=Shelf(order=[*order]), chat=chat, warm="none")
    searching = create_retriever_tool(
        retriever, "search", "Search the library.", response_format="content_and_artifact"
    )
    call = {"name": "search", "args": {"query": "clock"}, "id": "call_1", "type": "tool_call"}
    history = [SystemMessage(SYSTEM), HumanMessage(QUESTION), AIMessage("", tool_calls=[call])]
    said = chat.bind_tools([searching]).invoke([*history, searching.invoke(call)])
    function = {"name": "search", "arguments": '{"query": "clock"}'}
    return of_message(said), [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {
            "role": "tool",
            "content": "\n\n".join(order),
            "tool_call_id": "call_1",
            "name": "search",
        },
    ]


def query_engine(client: Noting, order: Sequence[str]) -> tuple[Answered, Expected]:
    seen = Callbacks()
    llm = LlamaHypic(client=client, callback_manager=seen.manager(), **OPTIONS)
    asked = [("system", SYSTEM), ("user", "{context_str}\n\n{query_str}")]
    engine = SegmentQueryEngine.from_args(
        LlamaShelf([TextNode(text=text) for text in order]),
        llm=llm,
        text_qa_template=LlamaPrompt.from_messages(asked),
        warm="none",
    )
    answer = str(engine.query(QUESTION))
    told = seen.ends[-1][EventPayload.RESPONSE].additional_kwargs
    return Answered(answer, told["prompt_tokens"], told["hypic"]), [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "\n\n".join([*order, QUESTION])},
    ]


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    with demo_server() as server:
        yield server


@pytest.fixture(scope="module")
def alone() -> Iterator[LocalHypic]:
    with LocalHypic() as local:
        yield local


@pytest.fixture(scope="module")
def process_url() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture(params=["local", "server", "process"])
def client(request, server: DemoServer) -> Iterator[Noting]:
    """In this process; over sockets to an engine in it; over those to `hypic serve`."""
    if request.param == "local":
        forget_all(server.local)
        yield Noting(server.local)
        return
    process = request.param == "process"
    with Hypic(request.getfixturevalue("process_url") if process else server.url) as over:
        forget_all(over)
        yield Noting(over)


@pytest.mark.parametrize("app", [stuff_chain, retriever_tool, query_engine])
def test_each_document_is_a_hit_after_its_first_use(client, alone, app: App):
    for turn, order in enumerate(ORDERS):
        answered, expected = app(client, order)
        check(client.noted[-1], expected, order, answered, alone)
        assert answered.statuses == ["hit" if turn else "cold"] * len(TEXTS)
        assert answered.answer


def asked_of_langchain(client: Noting, registry: SegmentRegistry, user: str) -> Answered:
    chat = ChatHypic(client=client, registry=registry, **OPTIONS)
    return of_message(chat.invoke([("system", SYSTEM), ("user", user)]))


def asked_of_llama_index(client: Noting, registry: SegmentRegistry, user: str) -> Answered:
    llm = LlamaHypic(client=client, registry=registry, **OPTIONS)
    said = llm.chat([ChatMessage(SYSTEM, role="system"), ChatMessage(user)])
    told = said.additional_kwargs
    return Answered(said.message.content, told["prompt_tokens"], told["hypic"])


@pytest.mark.parametrize("asked", [asked_of_langchain, asked_of_llama_index])
def test_an_edited_document_is_plain_text_and_reported_so(client, asked):
    """The application knows the old text; the prompt holds the new one, and so does the answer."""
    registry = SegmentRegistry()
    for one in client.segments.create_many(TEXTS, warm="wait"):
        registry.add(TEXTS[len(registry)], one.id)
    clock = DOCUMENTS["clock"]
    edited = clock.replace("38", "41")
    assert edited != clock
    texts = [edited if text == clock else text for text in TEXTS]
    said = asked(client, registry, "\n\n".join([*texts, QUESTION]))
    assert said.report["auto_segments"] == len(TEXTS) - 1
    assert said.statuses == ["hit"] * (len(TEXTS) - 1)
    assert "41" in said.answer
    told = client.prompts.explain(messages=client.noted[-1]["messages"])
    assert sum(part.expected == "hit" for part in told.parts) == len(TEXTS) - 1
    # what is left of it stands in one piece, with no id
    assert [
        part.segment_id for part in told.parts if part.tokens > 64 and part.expected == "live"
    ] == [None]
