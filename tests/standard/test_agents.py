"""Documents of an application in every order, by the ways in which they come into prompts."""

from __future__ import annotations

import json
import random
import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool

from hypic_sdk import Hypic, LocalHypic
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.integrations.langchain import (
    ChatHypic,
    HypicSegmentMiddleware,
    HypicSegmentRetriever,
    create_segment_documents_chain,
)
from tests.integrations.three_orders import ORDERS, QUESTION, Answered, Noting, check, forget_all

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
    made = create_agent(chat, [searching], middleware=[HypicSegmentMiddleware()])
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


CALL = {"name": "search", "args": {"query": "clock"}, "id": "call_1", "type": "tool_call"}


class Searches(AgentMiddleware):
    """Decides to search, for a model that was never taught to call tools; it answers itself."""

    def wrap_model_call(self, request, handler):
        if request.messages[-1].type == "human":
            return AIMessage("", tool_calls=[CALL])
        return handler(request)


@pytest.fixture(params=["local", "process"])
def demo(request) -> Iterator[Hypic | LocalHypic]:
    """The demo model in this process, and behind `hypic serve`."""
    over = Hypic(request.getfixturevalue("demo_url")) if request.param == "process" else None
    with over or LocalHypic() as client:
        forget_all(client)
        yield client


def test_an_agent_over_the_packaged_model(demo):
    """Each document a hit after its first use, no prompt edited, the answer `LocalHypic`'s."""
    function = {"name": "search", "arguments": '{"query": "clock"}'}
    with LocalHypic() as alone:
        client = Noting(demo)
        chat = ChatHypic(client=client, temperature=0.0, max_tokens=12)
        for turn, order in enumerate(ORDERS):
            finding = HypicSegmentRetriever(
                retriever=Shelf(order=list(order)), chat=chat, warm="none"
            )
            searching = create_retriever_tool(
                finding, "search", "Search the library.", response_format="content_and_artifact"
            )
            made = create_agent(
                chat,
                [searching],
                system_prompt=SYSTEM,
                middleware=[Searches(), HypicSegmentMiddleware()],
            )
            said = made.invoke({"messages": [{"role": "user", "content": QUESTION}]})["messages"]
            report = said[-1].response_metadata["hypic"]
            tokens = said[-1].usage_metadata["input_tokens"]
            answered = Answered(said[-1].text, tokens, report)
            called = [{"id": "call_1", "type": "function", "function": function}]
            expected = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": QUESTION},
                {"role": "assistant", "content": "", "tool_calls": called},
                {"role": "tool", "content": "\n\n".join(order), "tool_call_id": "call_1",
                 "name": "search"},
            ]  # fmt: skip
            check(client.noted[-1], expected, order, answered, alone)
            assert answered.statuses == ["hit" if turn else "cold"] * len(order)


def test_the_example_of_an_agent(capsys):
    assert runpy.run_path(str(EXAMPLES / "langchain_agent.py"))["main"]() == 0
    calls = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["calls"] for one in calls] == [["look_up"], [], ["look_up"], []]
    assert calls[0]["segments"] == ["cold"] * 3
    # skills moved, and the memory is another text
    assert calls[2]["segments"] == ["hit", "hit", "cold"]
    assert calls[3]["segments"][3] == "hit"
