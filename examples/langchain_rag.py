"""Documents through a LangChain chain: the prompt is the stuff chain's, the documents are segments.

    python examples/langchain_rag.py

No server: the demo model answers in this process (`ChatHypic(base_url=...)` asks a server instead).
Prints two answers, each with one JSON line about what its prompt cost.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from hypic_sdk import LocalHypic
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.integrations.langchain import (
    ChatHypic,
    HypicSegmentRetriever,
    create_segment_documents_chain,
)

QUESTIONS = (
    "How many kilograms does the Fenwold clock weigh?",
    "What is the phone extension of Ada Lindqvist?",
)
PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM), ("user", "{context}\n\n{question}")])


class Shelf(BaseRetriever):
    """Finds the documents that have the most words of the question, the best first."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        words = set(query.lower().rstrip("?").split())
        texts = sorted(DOCUMENTS.values(), key=lambda text: -len(words & set(text.lower().split())))
        return [Document(text) for text in texts[:3]]


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


def main() -> int:
    """Ask two questions; documents that were used before are hits, wherever they stand now."""
    with LocalHypic() as local:
        chat = ChatHypic(client=local, max_tokens=24)
        retriever = HypicSegmentRetriever(retriever=Shelf(), chat=chat, warm="wait")
        answering = create_segment_documents_chain(chat, PROMPT, output_parser=RunnableLambda(show))
        chain = {"context": retriever, "question": RunnablePassthrough()} | answering
        for question in QUESTIONS:
            chain.invoke(question)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
