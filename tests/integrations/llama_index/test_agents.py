"""Agents and structured answers over the scripted engine: its rules speak, its books are real."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import QueryEngineTool
from pydantic import BaseModel

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.integrations.llama_index import Hypic, SegmentQueryEngine, SegmentWarmPostprocessor
from hypic_sdk.offline import LocalHypic
from hypic_sdk.scripted import Answer, Call, Rule, Script
from tests.integrations.llama_index.paths import events
from tests.integrations.llama_index.shelf import Shelf, nodes

TEXTS = list(DOCUMENTS.values())[:6]
SCRIPT = Script(
    rules=(
        Rule(user="Context information", reply=Answer(content="About Ada: in Halden.")),
        Rule(
            user="Ada",
            after="user",
            reply=Answer(content="Let me see.", tool_calls=(Call("search", {"input": "Ada"}),)),
        ),
        Rule(tool_result="About Ada", reply=Answer(content="In Halden.")),
        Rule(
            user="Tomas", reply=Answer(tool_calls=(Call("Person", {"name": "Tomas", "age": 52}),))
        ),
        Rule(user="Answer:", reply=Answer(content="From the documents.")),
    )
)

# the framework's workflows look at each attribute of a model, old ones of pydantic's too
looks_at_all = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")


@pytest.fixture
def llm() -> Iterator[Hypic]:
    with LocalHypic.scripted(SCRIPT) as local:
        yield Hypic(client=local)


def reports(seen: list[Any]) -> list[dict[str, Any]]:
    """The cache reports of the model's calls, in order."""
    ends = [one for one in seen if type(one).__name__ == "LLMChatEndEvent"]
    return [one.response.additional_kwargs["hypic"] for one in ends]


def statuses(report: dict[str, Any]) -> list[str]:
    return [one["status"] for one in report["segments"]]


def test_it_says_that_it_calls_tools(llm: Hypic):
    assert llm.metadata.is_function_calling_model


@looks_at_all
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
def test_an_agent_whose_tool_finds_documents(llm: Hypic, streaming: bool):
    """Three orders: each document a hit after its first use, nothing told to the agent."""
    orders = [TEXTS, TEXTS[::-1], TEXTS[2:] + TEXTS[:2]]
    for text in TEXTS:
        llm.registry.add(text)
    turn = iter(orders)

    def search(input: str) -> str:
        """Search the documents."""
        return "\n\n".join(next(turn))

    async def ask() -> tuple[str, str]:
        agent = FunctionAgent(tools=[search], llm=llm, streaming=streaming)
        handler = agent.run("Where does Ada live?")
        said = ""
        async for event in handler.stream_events():
            said += event.delta if isinstance(event, AgentStream) else ""
        return str(await handler), said

    for at in range(len(orders)):
        with events() as seen:
            answer, said = asyncio.run(ask())
        assert answer == "In Halden."
        assert said == ("Let me see.In Halden." if streaming else "")
        _, last = reports(seen)
        assert last["auto_segments"] == len(TEXTS)
        assert statuses(last) == (["cold"] if at == 0 else ["hit"]) * len(TEXTS)


@looks_at_all
def test_an_agent_with_a_query_engine_as_its_tool(llm: Hypic):
    engine = SegmentQueryEngine.from_args(Shelf(nodes(*TEXTS)), llm=llm, warm="wait")
    tool = QueryEngineTool.from_defaults(engine, name="search", description="Search.")

    async def ask() -> str:
        return str(await FunctionAgent(tools=[tool], llm=llm).run("Where does Ada live?"))

    with events() as seen:
        assert asyncio.run(ask()) == "In Halden."
    asked, answered, told = reports(seen)
    assert statuses(answered) == ["hit"] * len(TEXTS)
    assert asked["segments"] == told["segments"] == []


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class TestStructured:
    def test_whole_on_a_loop_and_in_pieces(self, llm: Hypic):
        tomas = Person(name="Tomas", age=52)
        structured = llm.as_structured_llm(Person)
        asked = [ChatMessage("Who is Tomas?")]
        assert structured.chat(asked).raw == tomas
        assert asyncio.run(structured.achat(asked)).raw == tomas
        *_, last = llm.stream_structured_predict(Person, PromptTemplate("Who is Tomas?"))
        assert last == tomas


class TestConversation:
    def test_turns_over_pinned_documents(self, llm: Hypic):
        """A chat engine of the framework's own: documents stand in the system prompt each turn."""
        engine = ContextChatEngine.from_defaults(
            retriever=Shelf(nodes(*TEXTS), nodes(*TEXTS[::-1])),
            llm=llm,
            memory=ChatMemoryBuffer.from_defaults(token_limit=4000),
            node_postprocessors=[SegmentWarmPostprocessor(llm=llm, warm="wait")],
        )
        with events() as seen:
            for question in ("Answer: where?", "Answer: when?", "Answer: who?"):
                assert engine.chat(question).response == "From the documents."
        told = reports(seen)
        assert len(told) == 3
        for report in told:
            assert report["auto_segments"] == len(TEXTS)
            assert set(statuses(report)) <= {"hit", "prefix"}
