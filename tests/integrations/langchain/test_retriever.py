"""`HypicSegmentRetriever` and `create_segment_documents_chain` over a fake worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import PydanticOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from pydantic import BaseModel

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.errors import ConnectionFailed
from hypic_sdk.integrations.langchain import (
    ChatHypic,
    HypicSegmentRetriever,
    create_segment_documents_chain,
)
from tests.integrations.recording import AsyncRecording, Recording

ADA, TOMAS = DOCUMENTS["ada"], DOCUMENTS["tomas"]
PROMPT = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{context}\n{input}")])


class Shelf(BaseRetriever):
    """Finds its documents in order."""

    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any, k: int = 9):
        return self.documents[:k]

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any, k: int = 9):
        return self.documents[:k]


def shelf(*texts: str) -> Shelf:
    return Shelf(documents=[Document(text, metadata={"page": i}) for i, text in enumerate(texts)])


class TestRetriever:
    @pytest.mark.parametrize("warm", ["none", "wait"])
    def test_documents_are_registered_warmed_and_known(self, warm):
        client, found = Recording(), shelf(f" {ADA}\n", TOMAS, "short", ADA)
        chat = ChatHypic(client=client)
        retriever = HypicSegmentRetriever(retriever=found, chat=chat, warm=warm)
        documents = retriever.invoke("who?")
        assert client.registered == [([ADA, TOMAS], warm)]
        assert [one.page_content for one in documents] == [f" {ADA}\n", TOMAS, "short", ADA]
        [ada, tomas] = client.hypic.segments.list().data
        ids = [one.metadata.get("hypic_segment_id") for one in documents]
        assert ids == [ada.id, tomas.id, None, ada.id]
        assert [one.metadata["page"] for one in documents] == [0, 1, 2, 3]
        # the retriever's own objects are left as they were
        assert all("hypic_segment_id" not in one.metadata for one in found.documents)
        states = client.hypic.segments.lookup([ada, tomas]).values()
        assert {one.state for one in states} == {"warm" if warm == "wait" else "registered"}
        chat.invoke(TOMAS)
        part = {"type": "segment", "segment_id": tomas.id, "text": TOMAS}
        assert client.sent[0]["content"] == [part]

    def test_its_arguments_go_through(self):
        chat = ChatHypic(client=Recording())
        retriever = HypicSegmentRetriever(retriever=shelf(ADA, TOMAS), chat=chat)
        assert len(retriever.invoke("who?", k=1)) == 1
        assert len(asyncio.run(retriever.ainvoke("who?", k=1))) == 1

    def test_any_runnable_that_finds_documents(self):
        finding = RunnableLambda(lambda query: [Document(ADA)])
        retriever = HypicSegmentRetriever(retriever=finding, chat=ChatHypic(client=Recording()))
        assert "hypic_segment_id" in retriever.invoke("who?")[0].metadata

    def test_on_an_event_loop(self):
        client = AsyncRecording()
        chat = ChatHypic(async_client=client)
        retriever = HypicSegmentRetriever(retriever=shelf(ADA), chat=chat, warm="wait")
        [document] = asyncio.run(retriever.ainvoke("who?"))
        assert client.registered == [([ADA], "wait")]
        assert document.metadata["hypic_segment_id"].startswith("seg_")

    def test_nothing_found(self):
        client = Recording()
        retriever = HypicSegmentRetriever(retriever=shelf(), chat=ChatHypic(client=client))
        assert retriever.invoke("who?") == []
        assert client.registered == []

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_a_server_that_is_away_costs_no_document(self, asynchronous):
        error = ConnectionFailed("nobody there")
        chat = ChatHypic(client=Recording(error=error))
        if asynchronous:
            chat = ChatHypic(async_client=AsyncRecording(error=error))
        retriever = HypicSegmentRetriever(retriever=shelf(ADA), chat=chat)
        found = asyncio.run(retriever.ainvoke("q")) if asynchronous else retriever.invoke("q")
        assert [one.page_content for one in found] == [ADA]
        assert found[0].metadata["hypic_error"] == "connection_failed"
        assert ADA in chat.registry


class TestChain:
    def stuffed(self, documents: list[Document], **options: Any) -> tuple[str, list[str]]:
        """The user's text that a chain sends, and the segments in it."""
        client = Recording()
        chain = create_segment_documents_chain(ChatHypic(client=client), PROMPT, **options)
        assert chain.invoke({"context": documents, "input": "Where?"}) == "On the Ash."
        content = client.sent[1]["content"]
        segments = [part["text"] for part in content if part["type"] == "segment"]
        return "".join(part["text"] for part in content), segments

    def test_the_prompt_of_the_stuff_chain(self):
        documents = [Document(ADA), Document(TOMAS)]
        assert self.stuffed(documents) == (f"{ADA}\n\n{TOMAS}\nWhere?", [ADA, TOMAS])

    def test_what_stands_around_a_document_is_no_part_of_its_segment(self):
        documents = [Document(ADA, metadata={"n": 1}), Document(TOMAS, metadata={"n": 2})]
        text, segments = self.stuffed(
            documents,
            document_prompt=PromptTemplate.from_template("[{n}] {page_content}"),
            document_separator="\n---\n",
        )
        assert text == f"[1] {ADA}\n---\n[2] {TOMAS}\nWhere?"
        assert segments == [ADA, TOMAS]

    def test_another_variable_another_parser_a_bound_model(self):
        class Answer(BaseModel):
            place: str

        prompt = ChatPromptTemplate.from_template("{papers}")
        answering = RunnableLambda(lambda asked: '{"place": "Norwick"}')
        chain = create_segment_documents_chain(
            answering,
            prompt,
            output_parser=PydanticOutputParser(pydantic_object=Answer),
            document_variable_name="papers",
        )
        assert chain.invoke({"papers": [Document(ADA)]}) == Answer(place="Norwick")
        chat = ChatHypic(client=Recording())
        bound = chat.bind(stop=["A"]).with_config(tags=["x"])
        chain = create_segment_documents_chain(bound, prompt, document_variable_name="papers")
        chain.invoke({"papers": [Document(ADA)]})
        assert ADA in chat.registry

    def test_on_an_event_loop_and_streamed(self):
        chat = ChatHypic(client=Recording())
        chain = create_segment_documents_chain(chat, PROMPT)
        inputs = {"context": [Document(ADA)], "input": "Where?"}
        assert asyncio.run(chain.ainvoke(inputs)) == "On the Ash."
        said = list(chain.stream(inputs))
        assert "".join(said) == "On the Ash."
        assert len(said) > 2

    def test_a_prompt_without_the_variable(self):
        with pytest.raises(ValueError, match="papers"):
            create_segment_documents_chain(
                ChatHypic(client=Recording()), PROMPT, document_variable_name="papers"
            )
