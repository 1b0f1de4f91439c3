"""Ten thousand short documents through LangChain's own `index`: seen, stopped, again for nothing.

`llama_index/test_register.py` has the same of the other adapter.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import InMemoryVectorStore

from hypic_sdk.errors import RequestCancelled
from hypic_sdk.integrations.langchain import (
    ChatHypic,
    HypicSegmentIndex,
    HypicSegmentTransformer,
    SyncReport,
)
from hypic_sdk.offline import LocalHypic
from tests.integrations.tiny_model import tiny_local

NUM = 10_000


def documents(num: int, kind: str) -> list[Document]:
    return [
        Document(
            f"Document {kind}{at:05d} says that the locker code of person {7 * at} is K{at:05d}.",
            metadata={"source": f"{kind}{at:05d}"},
        )
        for at in range(num)
    ]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHypic]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    with tiny_local(folder) as local:
        yield local


def computed_tokens(reports: list[SyncReport]) -> int:
    """Of all batches; the last report of each tells how it ended."""
    ends = [one for one, after in zip(reports, [*reports[1:], None], strict=True)
            if after is None or after.num_registered < one.num_registered
            or after.num_warm < one.num_warm]  # fmt: skip
    return sum(one.computed_tokens for one in ends)


def test_indexed_with_progress_and_a_second_run_for_nothing(tiny: LocalHypic):
    told: list[SyncReport] = []
    made = HypicSegmentIndex(
        store=InMemoryVectorStore(DeterministicFakeEmbedding(size=2)),
        chat=ChatHypic(client=tiny),
        on_progress=told.append,
    )
    manager = InMemoryRecordManager("ten thousand")
    manager.create_schema()
    options = {"cleanup": "incremental", "source_id_key": "source", "key_encoder": "sha256"}
    given = documents(NUM, "a")
    assert index(given, manager, made, batch_size=2000, **options)["num_added"] == NUM
    assert [one for one in told if one.num_failed or one.num_not_kept] == []
    assert computed_tokens(told) > 200_000
    # often enough to draw a bar
    assert len(told) > 100
    states = tiny.segments.lookup(tiny.segments.create_many(one.page_content for one in given))
    assert {one.state for one in states.values()} == {"warm"}

    told.clear()
    assert index(given, manager, made, batch_size=2000, **options)["num_skipped"] == NUM
    assert told == []  # core knows what is in, and asks for nothing
    # without core's records: what is warm stays so
    HypicSegmentTransformer(made.chat, on_progress=told.append).transform_documents(given)
    assert (told[-1].num_warm, told[-1].num_created, told[-1].computed_tokens) == (NUM, 0, 0)


def test_stopped_and_gone_on_from_there(tiny: LocalHypic):
    cancel, told = threading.Event(), []

    def stop(report: SyncReport) -> None:
        told.append(report)
        if len(made.store.store) and report.num_warm > 50:
            cancel.set()

    made = HypicSegmentIndex(
        store=InMemoryVectorStore(DeterministicFakeEmbedding(size=2)),
        chat=ChatHypic(client=tiny),
        on_progress=stop,
        cancel=cancel,
    )
    manager = InMemoryRecordManager("stopped")
    manager.create_schema()
    options = {"cleanup": "incremental", "source_id_key": "source", "key_encoder": "sha256"}
    given = documents(1200, "b")
    with pytest.raises(RequestCancelled) as caught:
        index(given, manager, made, batch_size=400, **options)
    assert told[-1].is_cancelled
    assert caught.value.details["num_warm"] < caught.value.details["num_texts"] == 400
    # the first batch is in, the second is not, and the third was never begun
    assert len(made.store.store) == 400
    cancel.clear()
    made.on_progress = told.append
    told.clear()
    rest = index(given, manager, made, batch_size=400, **options)
    assert (rest["num_skipped"], rest["num_added"]) == (400, 800)
    # what was warm when it was stopped was not computed again
    assert max(one.reused_tokens for one in told) > 0
