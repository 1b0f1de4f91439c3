"""Documents warmed when they are taken in: seen, stopped in the middle, and gone on from there.

    pip install 'hypic-sdk[server,langchain]'
    python examples/warm_at_ingestion.py

Both adapters take documents in this way (`SegmentRegister.sync` of LlamaIndex has the same
`on_progress` and `cancel`).  No server: the demo model computes in this process.  Prints one JSON
line a run: the first is stopped, the second does the rest, the third finds all of it there.
"""

from __future__ import annotations

import json
import sys
import threading

from langchain_core.documents import Document

from hypic_sdk import LocalHypic, RequestCancelled
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.integrations.langchain import ChatHypic, HypicSegmentTransformer, SyncReport

STOP_AT = 4


class Progress:
    """A bar on stderr; after some documents it sets `cancel`, as a user would."""

    def __init__(self, stop_at: int | None) -> None:
        self.cancel = threading.Event()
        self.last = SyncReport(0)
        self._stop_at = stop_at

    def __call__(self, report: SyncReport) -> None:
        """Draw the bar."""
        self.last = report
        done = "#" * report.num_warm
        sys.stderr.write(f"\r[{done:<{report.num_texts}}] {report.num_warm}/{report.num_texts}")
        if self._stop_at is not None and report.num_warm >= self._stop_at:
            self.cancel.set()


def take_in(chat: ChatHypic, documents: list[Document], stop_at: int | None) -> None:
    """One run."""
    progress = Progress(stop_at)
    taking_in = HypicSegmentTransformer(chat, on_progress=progress, cancel=progress.cancel)
    try:
        taking_in.transform_documents(documents)
    except RequestCancelled:
        sys.stderr.write(" stopped")
    sys.stderr.write("\n")
    row = {
        "warm": progress.last.num_warm,
        "of": progress.last.num_texts,
        "computed_tokens": progress.last.computed_tokens,
        "reused_tokens": progress.last.reused_tokens,
    }
    sys.stdout.write(json.dumps(row) + "\n")


def main() -> int:
    """Three runs over the same documents."""
    documents = [Document(text, metadata={"source": name}) for name, text in DOCUMENTS.items()]
    with LocalHypic() as local:
        chat = ChatHypic(client=local)
        for stop_at in (STOP_AT, None, None):
            take_in(chat, documents, stop_at)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
