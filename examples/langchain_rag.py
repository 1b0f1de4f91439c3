"""RAG over a folder of documents with LangChain: the documents that are found are segments.

    python examples/langchain_rag.py [FOLDER ...]

Without a folder it writes the demo library into one.  The index registers and warms each file, with
progress; the prompt and the chain are those of any application.  No server: the demo model answers
in this process (`ChatHypic(base_url=...)` asks a server instead).  Prints two answers, each with
one JSON line about what its prompt cost.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

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
    create_segment_documents_chain,
)
from hypic_sdk.wire.segments import WarmJobObject

QUESTIONS = (
    "How many kilograms does the Fenwold clock weigh?",
    "What is the phone extension of Ada Lindqvist?",
)
PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM), ("user", "{context}\n\n{question}")])


class WordCounts(Embeddings):
    """A text as counts of its words, each at a place of its own: no model to fetch."""

    size = 512

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector a text."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a text; words of three letters say little and are left out."""
        vector = [0.0] * self.size
        for word in text.lower().split():
            if len(word) > 3:
                vector[zlib.crc32(word.strip(".,?").encode()) % self.size] += 1.0
        return vector


def read_folder(folder: Path) -> list[Document]:
    """Each text file of a folder."""
    return [
        Document(path.read_text(encoding="utf-8"), id=path.name, metadata={"source": path.name})
        for path in sorted(folder.glob("*.txt"))
    ]


def show_progress(job: WarmJobObject) -> None:
    """One line on stderr each time something was warmed."""
    counts = job.counts
    sys.stderr.write(f"warming: {counts.done + counts.already_warm} of {counts.total}\n")


def show(message: AIMessage) -> str:
    """The answer, and the cost of its prompt as one JSON line."""
    usage: Any = message.usage_metadata
    cost = {
        "input_tokens": usage["input_tokens"],
        **usage["input_token_details"],
        "segments": [one["status"] for one in message.response_metadata["hypic"]["segments"]],
    }
    sys.stdout.write(f"{message.text}\n{json.dumps(cost)}\n")
    return message.text


def answer(folder: Path) -> None:
    """Take the folder in, then ask; every document is a hit, wherever it stands."""
    with LocalHypic() as local:
        chat = ChatHypic(client=local, max_tokens=24)
        store = InMemoryVectorStore(WordCounts())
        index = HypicSegmentIndex(store=store, chat=chat, on_progress=show_progress, k=3)
        index.upsert(read_folder(folder))
        answering = create_segment_documents_chain(chat, PROMPT, output_parser=RunnableLambda(show))
        chain = {"context": index, "question": RunnablePassthrough()} | answering
        for question in QUESTIONS:
            chain.invoke(question)


def main(*folders: str) -> int:
    """Answer over the folders that are named, else over the demo library."""
    for named in folders:
        answer(Path(named))
    if folders:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for name, text in DOCUMENTS.items():
            Path(folder, f"{name}.txt").write_text(text, encoding="utf-8")
        answer(Path(folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
