"""`SegmentSynthesizer`: nodes stay whole, whatever fits into a prompt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import PromptTemplate
from llama_index.core.instrumentation.events.llm import LLMCompletionStartEvent
from llama_index.core.instrumentation.events.synthesis import (
    GetResponseEndEvent,
    GetResponseStartEvent,
    SynthesizeEndEvent,
    SynthesizeStartEvent,
)
from llama_index.core.llms.mock import MockLLM
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore
from pydantic import BaseModel

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.integrations.llama_index import Hypic, SegmentSynthesizer
from tests.integrations.llama_index.paths import events
from tests.integrations.llama_index.shelf import nodes
from tests.integrations.llama_index.test_tools import Recorded, reply
from tests.integrations.recording import AsyncRecording, Recording

TEXTS = list(DOCUMENTS.values())[:8]
QA = PromptTemplate("QA {query_str}\n{context_str}")
REFINE = PromptTemplate("REFINE {query_str} {existing_answer}\n{context_msg}")


ANSWER_TOKENS = 200


def num_tokens(client: Recording, request: dict[str, Any]) -> int:
    """Tokens of a prompt, its chat template included."""
    done = client.hypic.chat.completions.create(**{**request, "max_tokens": 0})
    return done.usage.prompt_tokens


def found(texts: list[str]) -> list[NodeWithScore]:
    return [NodeWithScore(node=node, score=0.5) for node in nodes(*texts)]


def over(client: Recording, context_window: int = 100_000, **options: Any) -> SegmentSynthesizer:
    asynchronous = client if isinstance(client, AsyncRecording) else None
    llm = Hypic(
        client=client,
        async_client=asynchronous,
        context_window=context_window,
        is_chat_model=True,
        max_tokens=ANSWER_TOKENS,
    )
    return SegmentSynthesizer(llm=llm, text_qa_template=QA, refine_template=REFINE, **options)


def synthesized(synthesizer: SegmentSynthesizer, texts: list[str], *, is_async: bool) -> str:
    if not is_async:
        return str(synthesizer.synthesize("Where?", found(texts)))

    async def answer() -> str:
        response = await synthesizer.asynthesize("Where?", found(texts))
        pieces = getattr(response, "response_gen", None)
        return str(response) if pieces is None else "".join([one async for one in pieces])

    return asyncio.run(answer())


def prompts(client: Recording) -> list[str]:
    """The texts of the prompts that were sent."""
    contents = [request["messages"][0]["content"] for request in client.requests]
    return [
        one if isinstance(one, str) else "".join(part["text"] for part in one) for one in contents
    ]


def segments(client: Recording) -> list[list[str]]:
    """The texts of the segments in each prompt that was sent."""
    contents = [request["messages"][0]["content"] for request in client.requests]
    return [
        [part["text"] for part in one if part["type"] == "segment"]
        for one in contents
        if not isinstance(one, str)
    ]


both = pytest.mark.parametrize("is_async", [False, True], ids=["waiting", "on a loop"])


def client_for(is_async: bool) -> Recording:
    return AsyncRecording() if is_async else Recording()


class TestOnePrompt:
    @both
    def test_all_nodes_whole_and_in_order_each_a_segment(self, is_async):
        client = client_for(is_async)
        assert synthesized(over(client), TEXTS, is_async=is_async) == "On the Ash."
        assert prompts(client) == ["QA Where?\n" + "\n\n".join(TEXTS)]
        assert segments(client) == [TEXTS]
        # what fits surely costs no call to count it
        assert client.registered == []

    def test_the_prompt_of_compact(self):
        theirs, ours = Recording(), Recording()
        llm = Hypic(client=theirs, context_window=100_000, is_chat_model=True)
        compact = get_response_synthesizer(llm=llm, text_qa_template=QA, refine_template=REFINE)
        texts = [f"\n {TEXTS[0]} \n", "", TEXTS[1], "short"]
        compact.synthesize("Where?", found(texts))
        over(ours).synthesize("Where?", found(texts))
        assert prompts(ours) == prompts(theirs)

    def test_no_text_at_all(self):
        client = Recording()
        assert synthesized(over(client), ["", " "], is_async=False) == "On the Ash."
        assert prompts(client) == ["QA Where?\n"]

    @both
    def test_streamed(self, is_async):
        client = client_for(is_async)
        answer = synthesized(over(client, streaming=True), TEXTS, is_async=is_async)
        assert answer == "On the Ash."
        assert segments(client) == [TEXTS]


class TestSeveralPrompts:
    @both
    @pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
    def test_groups_of_whole_nodes_the_answer_so_far_going_along(self, is_async, streaming):
        client = client_for(is_async)
        synthesizer = over(client, context_window=1200, streaming=streaming)
        assert synthesized(synthesizer, TEXTS, is_async=is_async) == "On the Ash."
        assert len(client.requests) > 2
        assert [one for group in segments(client) for one in group] == TEXTS
        first, *others = prompts(client)
        assert first.startswith("QA Where?\n")
        assert all(one.startswith("REFINE Where? On the Ash.\n") for one in others)
        # asked once how long they are, which registers them too
        assert client.registered == [(TEXTS, "none")]

    @given(st.integers(0, 3000))
    def test_a_node_is_never_split(self, context_window: int):
        client = Recording()
        synthesized(over(client, context_window), TEXTS, is_async=False)
        assert [one for group in segments(client) for one in group] == TEXTS

    def test_prompts_are_within_the_window_the_answer_too(self):
        """Counted by the model's own tokenizer, in windows around what all of it takes."""
        client = Recording()
        synthesized(over(client), TEXTS, is_async=False)
        whole = num_tokens(client, client.requests[0]) + ANSWER_TOKENS
        num_prompts = []
        for window in range(whole - 60, whole + 700, 40):
            client = Recording()
            synthesized(over(client, window), TEXTS, is_async=False)
            num_prompts.append(len(client.requests))
            assert all(
                num_tokens(client, request) + ANSWER_TOKENS <= window for request in client.requests
            )
        # and not more of them than needed where there is room
        assert (num_prompts[0], num_prompts[-1]) == (2, 1)

    def test_an_answer_to_go_on_from(self):
        client = Recording()
        answer = over(client).get_response("Where?", [TEXTS[0]], prev_response="In Halden")
        assert answer == "On the Ash."
        assert prompts(client)[0].startswith("REFINE Where? In Halden\n")


class TestFramework:
    def test_over_another_model(self):
        """This one says what it is asked."""
        synthesizer = SegmentSynthesizer(llm=MockLLM(), text_qa_template=QA)
        answer = str(synthesizer.synthesize("Where?", found(TEXTS[:2])))
        assert answer == f"QA Where?\n{TEXTS[0]}\n\n{TEXTS[1]}"

    def test_over_another_model_nodes_are_not_split_either(self):
        synthesizer = SegmentSynthesizer(
            llm=MockLLM(max_tokens=2), text_qa_template=QA, refine_template=REFINE
        )
        with events() as seen:
            synthesizer.synthesize("Where?", found(TEXTS * 8))
        asked = [one.prompt for one in seen if isinstance(one, LLMCompletionStartEvent)]
        assert len(asked) > 1
        assert [sum(one.count(text) for one in asked) for text in TEXTS] == [8] * len(TEXTS)

    def test_prompts_can_be_seen_and_changed(self):
        client = Recording()
        synthesizer = over(client)
        assert set(synthesizer.get_prompts()) == {"text_qa_template", "refine_template"}
        synthesizer.update_prompts({"text_qa_template": PromptTemplate("New {context_str}")})
        synthesizer.synthesize("Where?", found(TEXTS[:1]))
        assert prompts(client) == [f"New {TEXTS[0]}"]

    def test_more_variables_of_a_template(self):
        client = Recording()
        synthesizer = over(client)
        synthesizer.update_prompts({"text_qa_template": PromptTemplate("{tone} {context_str}")})
        synthesizer.synthesize("Where?", found(TEXTS[:1]), tone="Kindly")
        assert prompts(client) == [f"Kindly {TEXTS[0]}"]

    def test_events(self):
        with events() as seen:
            over(Recording()).synthesize("Where?", found(TEXTS[:2]))
        kinds = [
            SynthesizeStartEvent,
            GetResponseStartEvent,
            GetResponseEndEvent,
            SynthesizeEndEvent,
        ]
        assert [type(one) for one in seen if type(one) in kinds] == kinds
        [start] = [one for one in seen if isinstance(one, GetResponseStartEvent)]
        assert start.text_chunks == TEXTS[:2]

    def test_sources_stay_with_the_answer(self):
        response = over(Recording()).synthesize("Where?", found(TEXTS[:2]))
        assert [one.node.text for one in response.source_nodes] == TEXTS[:2]


class Place(BaseModel):
    """A place."""

    name: str


class TestStructured:
    WHOLE = reply({"name": "Place", "arguments": '{"name": "Halden"}'})

    def llm(self, context_window: int = 100_000) -> Hypic:
        return Hypic(
            client=Recorded(self.WHOLE),
            context_window=context_window,
            is_chat_model=True,
            is_function_calling_model=True,
        )

    @both
    def test_an_answer_of_a_class(self, is_async):
        synthesizer = SegmentSynthesizer(
            llm=self.llm(), output_cls=Place, text_qa_template=QA, refine_template=REFINE
        )
        if is_async:
            response = asyncio.run(synthesizer.asynthesize("Where?", found(TEXTS[:2])))
        else:
            response = synthesizer.synthesize("Where?", found(TEXTS[:2]))
        assert response.response == Place(name="Halden")

    def test_over_a_structured_model(self):
        llm = self.llm()
        synthesizer = SegmentSynthesizer(llm=llm.as_structured_llm(Place), text_qa_template=QA)
        response = synthesizer.synthesize("Where?", found(TEXTS[:2]))
        assert response.response == Place(name="Halden")
        content = llm.client.requests[0]["messages"][0]["content"]
        assert [part["text"] for part in content if part["type"] == "segment"] == TEXTS[:2]

    def test_it_comes_whole(self):
        with pytest.raises(ValueError, match="streaming"):
            SegmentSynthesizer(llm=self.llm(), output_cls=Place, streaming=True)
