"""LangChain's standard suites for the retriever and the index, against the demo model's server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langchain_tests.integration_tests.indexer import (
    AsyncDocumentIndexTestSuite,
    DocumentIndexerTestSuite,
)

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.integrations.langchain import ChatHypic, HypicSegmentIndex, HypicSegmentRetriever


@pytest.fixture(autouse=True)
def at(demo_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPIC_BASE_URL", demo_url)


def store(*texts: str) -> InMemoryVectorStore:
    made = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    made.add_documents([Document(text) for text in texts])
    return made


class TestRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return HypicSegmentRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retriever": store(*DOCUMENTS.values()).as_retriever(), "chat": ChatHypic()}

    @property
    def retriever_query_example(self) -> str:
        return "Who lives in Norwick?"


class TestIndex(DocumentIndexerTestSuite):
    @pytest.fixture
    def index(self) -> Iterator[HypicSegmentIndex]:
        chat = ChatHypic()
        yield HypicSegmentIndex(store=store(), chat=chat)
        chat.close()


class TestAsyncIndex(AsyncDocumentIndexTestSuite):
    @pytest.fixture
    async def index(self) -> AsyncIterator[HypicSegmentIndex]:
        chat = ChatHypic()
        yield HypicSegmentIndex(store=store(), chat=chat)
        await chat.aclose()
