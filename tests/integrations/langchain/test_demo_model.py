"""The adapter over the demo model, in this process and behind a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.integrations.langchain import (
    ChatHypic,
    HypicSegmentRetriever,
    create_segment_documents_chain,
)
from tests.server.demo_server import DemoServer, demo_server

PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM), ("user", "{context}\n\n{input}")])
QUESTION = "How many kilograms does the Fenwold clock weigh?"


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    with demo_server() as server:
        yield server
        server.worker.call(lambda engine: engine.check())
        assert server.in_use_bytes == 0


@pytest.fixture(scope="module", params=["local", "server"])
def chat(request, server: DemoServer) -> Iterator[ChatHypic]:
    """The same class, one argument."""
    place = {"client": server.local} if request.param == "local" else {"base_url": server.url}
    model = ChatHypic(**place, temperature=0.0, max_tokens=16)
    yield model
    model.close()


def rotations(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [names[i:] + names[:i] for i in range(len(names))]


def statuses(message) -> list[str]:
    return [one["status"] for one in message.response_metadata["hypic"]["segments"]]


class TestThreeOrders:
    """The same documents in three orders: each a hit after its first use, the prompt unchanged."""

    @pytest.fixture(autouse=True)
    def _nothing_is_kept(self, server, chat):
        """What the same test over the other client left behind."""
        for one in server.local.segments.list(limit=1000).data:
            server.local.segments.delete(one)

    def test_through_a_stuffing_prompt(self, server, chat):
        names = ("lantern", "clock", "ada")
        seen: set[str] = set()
        for order in rotations(names):
            texts = [DOCUMENTS[name] for name in order]
            for text in texts:
                chat.registry.add(text, server.local.segments.create(text).id)
            prompt = PROMPT.invoke({"context": "\n\n".join(texts), "input": QUESTION})
            reply = chat.invoke(prompt)
            assert statuses(reply) == ["hit" if name in seen else "cold" for name in order]
            read = reply.usage_metadata["input_token_details"]["cache_read"]
            written = reply.usage_metadata["input_token_details"]["cache_creation"]
            # the leading part may be known already, and is much shorter than any document
            assert (read > 50) == bool(seen)
            assert bool(written) != bool(seen)
            assert reply.usage_metadata["input_tokens"] >= read + written
            self._is_as_without_the_adapter(server, prompt, texts, reply)
            seen |= set(order)

    def _is_as_without_the_adapter(self, server, prompt, texts, reply):
        """The same request, written by hand."""
        [system, user] = prompt.to_messages()
        parts: list[object] = []
        for text in texts:
            parts += [{"type": "segment", "text": text}, "\n\n"]
        assert "".join(part if isinstance(part, str) else part["text"] for part in parts) + (
            QUESTION
        ) == (user.content)
        own = server.local.chat.completions.create(
            messages=[
                {"role": "system", "content": system.content},
                {"role": "user", "content": [*parts, QUESTION]},
            ],
            temperature=0.0,
            max_tokens=16,
        )
        assert own.choices[0].message.content == reply.content
        assert own.usage.prompt_tokens == reply.usage_metadata["input_tokens"]
        assert "38" in reply.content

    def test_through_the_chain_with_a_retriever(self, chat):
        names = ("irene", "clock", "gustav")
        orders = iter(rotations(names))
        finding = RunnableLambda(lambda query: [Document(DOCUMENTS[name]) for name in next(orders)])
        retriever = HypicSegmentRetriever(retriever=finding, chat=chat, warm="wait")
        replies = []

        def noted(message):
            replies.append(message)
            return message

        answering = create_segment_documents_chain(
            chat, PROMPT, output_parser=RunnableLambda(noted)
        )
        chain = {"context": retriever, "input": RunnablePassthrough()} | answering
        for _ in names:
            assert "38" in chain.invoke(QUESTION).content
        # warmed before the prompt was made
        assert [statuses(reply) for reply in replies] == [["hit"] * 3] * 3


def test_a_stream_says_what_the_whole_says(chat):
    chat.registry.add(DOCUMENTS["clock"])
    prompt = PROMPT.invoke({"context": DOCUMENTS["clock"], "input": QUESTION})
    whole = chat.invoke(prompt)

    async def streamed():
        chunks = [chunk async for chunk in chat.astream(prompt)]
        return "".join(chunk.content for chunk in chunks), chunks[-1].usage_metadata

    async def both():
        asked = await chat.ainvoke(prompt)
        said = await streamed()
        own = chat.async_calls()
        if own is not None:
            await own.close()
        return asked, said

    asked, (said, usage) = asyncio.run(both())
    text = "".join(chunk.content for chunk in chat.stream(prompt))
    assert text == said == asked.content == whole.content
    assert usage["input_tokens"] == whole.usage_metadata["input_tokens"]


def test_tokens_are_counted_by_the_server(server):
    chat = ChatHypic(base_url=server.url)
    messages = PROMPT.invoke({"context": DOCUMENTS["clock"], "input": QUESTION}).to_messages()
    counted = chat.get_num_tokens_from_messages(messages)
    assert counted == chat.invoke(messages, max_tokens=1).usage_metadata["input_tokens"]
    chat.close()


def test_stop_and_length(chat):
    prompt = PROMPT.invoke({"context": DOCUMENTS["clock"], "input": QUESTION})
    cut = chat.invoke(prompt, max_tokens=1)
    assert cut.response_metadata["finish_reason"] == "length"
    assert cut.usage_metadata["output_tokens"] == 1
    assert "8" not in chat.invoke(prompt, stop=["8"]).content


def test_leaving_a_stream_early_ends_the_request(server, chat):
    prompt = PROMPT.invoke({"context": DOCUMENTS["clock"], "input": QUESTION})
    stream = chat.stream(prompt)
    next(stream)
    stream.close()
    # the fixture checks that nothing is held at the end
    assert chat.invoke(prompt).content
