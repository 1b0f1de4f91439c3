"""Documents of an application in every order, by the ways in which they come into prompts."""

from __future__ import annotations

import json
import random
import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool

from hypic_sdk import LocalHypic
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.integrations.langchain import (
    ChatHypic,
    HypicSegmentMiddleware,
    HypicSegmentRetriever,
    create_segment_documents_chain,
)

TEXTS = list(DOCUMENTS.values())[:12]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Shelf(BaseRetriever):
    """Finds the same documents each time, in an order that changes."""

    order: list[str]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(text) for text in self.order]


def stuff_chain(chat: ChatHypic, retriever: BaseRetriever) -> BaseMessage:
    prompt = ChatPromptTemplate.from_messages([("user", "{context}\n\n{question}")])
    answering = create_segment_documents_chain(
        chat, prompt, output_parser=RunnableLambda(lambda message: message)
    )
    return ({"context": retriever, "question": RunnablePassthrough()} | answering).invoke("Where?")


def agent(chat: ChatHypic, retriever: BaseRetriever) -> BaseMessage:
    searching = create_retriever_tool(
        retriever, "search", "Search the library.", response_format="content_and_artifact"
    )
    made = create_agent(chat, [searching], middleware=[HypicSegmentMiddleware(tool_results=False)])
    asked = {"messages": [{"role": "user", "content": 'search("all of it")'}]}
    return made.invoke(asked)["messages"][-1]


def plain_prompt(chat: ChatHypic, retriever: BaseRetriever) -> BaseMessage:
    found = retriever.invoke("Where?")
    return chat.invoke("Read:\n" + "\n---\n".join(one.page_content for one in found) + "\nWhere?")


@pytest.fixture(scope="module")
def local() -> Iterator[LocalHypic]:
    with LocalHypic.scripted() as local:
        yield local


@pytest.mark.parametrize("app", [stuff_chain, agent, plain_prompt])
def test_the_same_documents_in_three_orders(local, app: Callable[..., BaseMessage]):
    # room for a call of a tool
    chat, rng = ChatHypic(client=local, max_tokens=200), random.Random(3)
    orders: list[Sequence[str]] = [TEXTS, TEXTS[::-1], rng.sample(TEXTS, len(TEXTS))]
    for turn, order in enumerate(orders):
        retriever = HypicSegmentRetriever(retriever=Shelf(order=list(order)), chat=chat)
        report = app(chat, retriever).response_metadata["hypic"]
        statuses = [one["status"] for one in report["segments"]]
        assert len(statuses) == len(TEXTS)
        assert report["auto_segments"] == len(TEXTS)
        if turn:
            assert set(statuses) == {"hit"}


def test_the_example_of_an_agent(capsys):
    assert runpy.run_path(str(EXAMPLES / "langchain_agent.py"))["main"]() == 0
    calls = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["calls"] for one in calls] == [["look_up"], [], ["look_up"], []]
    assert calls[0]["segments"] == ["cold"] * 3
    # skills moved, and the memory is another text
    assert calls[2]["segments"] == ["hit", "hit", "cold"]
    assert calls[3]["segments"][3] == "hit"
