"""The query engine over the demo model: documents in any order are hits, the prompt as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.base.llms.types import MessageRole
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMChatStartEvent
from llama_index.core.llms.mock import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.integrations.llama_index import Hypic, SegmentQueryEngine
from tests.integrations.llama_index.paths import events
from tests.integrations.llama_index.shelf import Shelf, nodes
from tests.server.demo_server import DemoServer, demo_server

QUESTION = "How many kilograms does the Fenwold clock weigh?"


@pytest.fixture
def twelve(request) -> list[TextNode]:
    """Documents that no other test has used, so none is known yet."""
    return nodes(*(f"{text} ({request.node.name})" for text in list(DOCUMENTS.values())[:12]))


def orders(twelve: list[TextNode]) -> list[list[TextNode]]:
    """Three, none beginning as another does: a common beginning would be reuse of another kind."""
    return [twelve, twelve[::-1], twelve[5:] + twelve[:5]]


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    with demo_server() as server:
        yield server
        server.worker.call(lambda engine: engine.check())
        assert server.in_use_bytes == 0


@pytest.fixture(params=["local", "server"])
def llm(request, server: DemoServer) -> Iterator[Hypic]:
    """The same class, one argument."""
    place = {"client": server.local} if request.param == "local" else {"base_url": server.url}
    # the server of this test does not tell its window
    model = Hypic(**place, temperature=0.0, max_tokens=16, context_window=8192)
    yield model
    model.close()


def asked(engine: RetrieverQueryEngine, *, is_async: bool, llm: Hypic) -> tuple[str, Any]:
    """The answer, and the event at the end of the model's only call."""

    async def aask() -> str:
        try:
            return str(await engine.aquery(QUESTION))
        finally:
            if (calls := llm.async_calls()) is not None:
                await calls.close()

    with events() as seen:
        answer = asyncio.run(aask()) if is_async else str(engine.query(QUESTION))
    assert len([one for one in seen if isinstance(one, LLMChatStartEvent)]) == 1
    [end] = [one for one in seen if isinstance(one, LLMChatEndEvent)]
    return answer, end


def statuses(end: LLMChatEndEvent) -> list[str]:
    report = end.response.additional_kwargs["hypic"]
    return [one["status"] for one in report["segments"]]


def by_hand(server: DemoServer, end: LLMChatEndEvent, order: list[TextNode]) -> Any:
    """The same request without the adapter: each document a part of its own."""
    messages = []
    for message in end.messages:
        parts, rest = [], message.content
        if message.role is MessageRole.USER:
            for node in order:
                before, found, rest = rest.partition(node.text)
                assert found, "the document stands in the prompt to the byte"
                parts += [before, {"type": "segment", "text": node.text}]
        messages.append({"role": message.role.value, "content": [*parts, rest]})
    return server.local.chat.completions.create(messages=messages, temperature=0.0, max_tokens=16)


class TestTwelveDocumentsInThreeOrders:
    def is_as_by_hand(self, server: DemoServer, end: Any, order: list[TextNode]) -> None:
        own = by_hand(server, end, order)
        assert end.response.message.content == own.choices[0].message.content
        assert end.response.raw.usage.prompt_tokens == own.usage.prompt_tokens

    @pytest.mark.parametrize("is_async", [False, True], ids=["waiting", "on a loop"])
    def test_each_is_a_hit_after_its_first_use(self, server, llm: Hypic, twelve, is_async: bool):
        assert len(twelve) == len({node.text for node in twelve}) == 12
        engine = SegmentQueryEngine.from_args(Shelf(*orders(twelve)), llm=llm, warm="none")
        for turn, order in enumerate(orders(twelve)):
            answer, end = asked(engine, is_async=is_async, llm=llm)
            first = ["cold"] * 12 if turn == 0 else ["hit"] * 12
            assert statuses(end) == first
            assert answer == end.response.message.content
            self.is_as_by_hand(server, end, order)

    def test_warmed_while_the_prompt_is_made_each_is_a_hit_at_once(
        self, server, llm: Hypic, twelve
    ):
        engine = SegmentQueryEngine.from_args(Shelf(*orders(twelve)), llm=llm, warm="wait")
        for order in orders(twelve):
            _, end = asked(engine, is_async=False, llm=llm)
            assert statuses(end) == ["hit"] * 12
            self.is_as_by_hand(server, end, order)

    def test_the_prompt_is_that_of_the_frameworks_own_engine(self, llm: Hypic, twelve):
        """Only the model is swapped; what it learnt elsewhere it finds here."""
        for node in twelve:
            llm.registry.add(node.text)
        ours = SegmentQueryEngine.from_args(Shelf(twelve), llm=llm, warm="none")
        theirs = RetrieverQueryEngine.from_args(Shelf(twelve), llm=llm)
        (answer, end), (other, other_end) = (
            asked(engine, is_async=False, llm=llm) for engine in (ours, theirs)
        )
        assert end.messages == other_end.messages
        assert answer == other
        # the very prompt was there before, so its beginning is reused as such
        assert len(statuses(other_end)) == 12
        assert set(statuses(other_end)) <= {"hit", "prefix"}


class TestAnEditedDocument:
    def test_it_is_plain_text_and_this_is_told(self, llm: Hypic, twelve):
        engine = RetrieverQueryEngine.from_args(Shelf(twelve[:3]), llm=llm)
        for node in twelve[:3]:
            llm.registry.add(node.text)
        _, before = asked(engine, is_async=False, llm=llm)
        assert before.response.additional_kwargs["hypic"]["auto_segments"] == 3

        edited = TextNode(text=twelve[1].text.replace(" is ", " was "))
        assert edited.text != twelve[1].text
        engine = RetrieverQueryEngine.from_args(Shelf([twelve[0], edited, twelve[2]]), llm=llm)
        answer, after = asked(engine, is_async=False, llm=llm)
        told = after.response.additional_kwargs["hypic"]
        assert told["auto_segments"] == 2
        assert set(statuses(after)) <= {"hit", "prefix"}
        assert edited.text in after.messages[-1].content
        assert answer


class TestShapes:
    def test_streamed(self, llm: Hypic, twelve):
        engine = SegmentQueryEngine.from_args(Shelf(twelve[:3]), llm=llm, streaming=True)
        whole = SegmentQueryEngine.from_args(Shelf(twelve[:3]), llm=llm)
        pieces = list(engine.query(QUESTION).response_gen)
        assert len(pieces) > 1
        assert "".join(pieces) == str(whole.query(QUESTION))

    def test_nothing_found(self, llm: Hypic):
        assert str(SegmentQueryEngine.from_args(Shelf([]), llm=llm).query(QUESTION)) == (
            "Empty Response"
        )

    def test_over_another_model_it_is_an_ordinary_engine(self, twelve):
        engine = SegmentQueryEngine.from_args(Shelf(twelve[:2]), llm=MockLLM())
        answer = str(engine.query(QUESTION))
        assert f"{twelve[0].text}\n\n{twelve[1].text}" in answer
        assert engine._node_postprocessors == []

    def test_another_retriever_keeps_the_rest(self, llm: Hypic, twelve):
        engine = SegmentQueryEngine.from_args(Shelf([]), llm=llm, warm="wait")
        _, end = asked(engine.with_retriever(Shelf(twelve[:2])), is_async=False, llm=llm)
        assert statuses(end) == ["hit", "hit"]
