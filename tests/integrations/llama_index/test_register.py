"""`SegmentRegister`: ingestion that can be seen, stopped, and run again at no cost."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from dataclasses import astuple
from itertools import pairwise

import pytest
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.errors import ConnectionFailed
from hypic_sdk.integrations import syncing
from hypic_sdk.integrations.llama_index import Hypic, SegmentRegister, SyncReport
from hypic_sdk.offline import LocalHypic
from hypic_sdk.wire.segments import SegmentObject
from tests.integrations.llama_index.shelf import nodes
from tests.integrations.recording import AsyncRecording, Recording
from tests.integrations.tiny_model import tiny_local
from tests.server.demo_server import DemoServer, demo_server

TEXTS = list(DOCUMENTS.values())[:5]
ADA, TOMAS = TEXTS[:2]


def short_documents(num: int, kind: str) -> list[TextNode]:
    return nodes(
        *(
            f"Document {kind}{at:05d} says that the locker code of person {7 * at} is K{at:05d}."
            for at in range(num)
        )
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Iterator[LocalHypic]:
    with tiny_local(tmp_path_factory.mktemp("tiny")) as local:
        yield local


class TestTenThousand:
    """On a real model of hardly any size."""

    def test_progress_is_told_and_a_second_run_costs_no_compute(self, tiny: LocalHypic):
        register = SegmentRegister(llm=Hypic(client=tiny))
        documents = short_documents(10_000, "a")
        told: list[SyncReport] = []
        report = register.sync(documents, on_progress=told.append)
        assert report == told[-1]
        assert (report.num_texts, report.num_created, report.num_warm) == (10_000,) * 3
        assert report.computed_tokens > 200_000
        assert report.num_failed == report.reused_tokens == 0
        # often enough to draw a bar, and it never goes back
        assert len(told) > 100
        for before, after in pairwise(told):
            assert all(
                one <= other for one, other in zip(astuple(before), astuple(after), strict=True)
            )

        again = register.sync(documents)
        assert (again.num_registered, again.num_created, again.num_warm) == (10_000, 0, 10_000)
        assert again.computed_tokens == 0
        assert again.reused_tokens == report.computed_tokens

    def test_it_can_be_stopped_and_goes_on_from_there(self, tiny: LocalHypic):
        register = SegmentRegister(llm=Hypic(client=tiny))
        documents = short_documents(1500, "b")
        cancel = threading.Event()

        def stop(report: SyncReport) -> None:
            if report.num_warm >= 100:
                cancel.set()

        stopped = register.sync(documents, on_progress=stop, cancel=cancel)
        assert stopped.is_cancelled
        assert 100 <= stopped.num_warm < 1500
        rest = register.sync(documents)
        assert not rest.is_cancelled
        assert rest.num_warm == 1500
        assert rest.reused_tokens >= stopped.computed_tokens > 0
        assert rest.computed_tokens > 0

    def test_more_than_one_call_may_have(self, tiny: LocalHypic, monkeypatch):
        monkeypatch.setattr(syncing, "_CALL_IDS", 300)
        register = SegmentRegister(llm=Hypic(client=tiny), collection="many")
        documents = short_documents(1000, "f")
        told: list[SyncReport] = []
        report = register.sync(documents, on_progress=told.append)
        assert (report.num_warm, report.reused_tokens) == (1000, 0)
        for before, after in pairwise(told):
            assert before.num_warm <= after.num_warm
            assert before.computed_tokens <= after.computed_tokens
        assert register.prune([]) == 1000

    def test_it_can_be_stopped_while_texts_are_registered(self):
        client = Recording()
        cancel = threading.Event()
        register = SegmentRegister(llm=Hypic(client=client))
        report = register.sync(
            short_documents(1000, "c"), on_progress=lambda _: cancel.set(), cancel=cancel
        )
        assert report.is_cancelled
        assert 0 < report.num_registered < 1000
        assert report.num_warm == 0
        assert len(client.registered) == 1

    def test_a_task_that_is_cancelled_stops_it(self, tiny: LocalHypic):
        register = SegmentRegister(llm=Hypic(client=tiny))
        documents = short_documents(1500, "d")
        reports: list[SyncReport] = []

        async def cancel() -> None:
            task = asyncio.create_task(register.async_sync(documents, on_progress=reports.append))
            while not reports or reports[-1].num_warm < 50:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        # the loop waits for its threads, so for the end of the run
        asyncio.run(cancel())
        assert reports[-1].is_cancelled
        assert reports[-1].num_warm < 1500


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    with demo_server() as server:
        yield server


@pytest.fixture(params=["local", "server"])
def llm(request, server: DemoServer) -> Iterator[Hypic]:
    """The same class, one argument; what a test leaves behind is deleted."""
    place = {"client": server.local} if request.param == "local" else {"base_url": server.url}
    model = Hypic(**place, temperature=0.0, max_tokens=4, context_window=8192)
    yield model
    for one in registered(model):
        model.calls().segments.delete(one)
    model.close()


def registered(llm: Hypic) -> list[SegmentObject]:
    return llm.calls().segments.list(limit=1000).data


def states(llm: Hypic) -> set[str]:
    return {one.state for one in llm.calls().segments.lookup(registered(llm)).values()}


class TestSync:
    def test_documents_are_warm_and_known(self, llm: Hypic):
        report = SegmentRegister(llm=llm).sync(nodes(*TEXTS, ADA, "short"))
        assert report.num_texts == report.num_created == report.num_warm == len(TEXTS)
        assert states(llm) == {"warm"}
        answer = llm.complete(f"{ADA}\n\n{TOMAS}\n\nWho?")
        segments = answer.additional_kwargs["hypic"]["segments"]
        assert [one["status"] for one in segments] == ["hit", "hit"]

    def test_registered_only(self, llm: Hypic):
        report = SegmentRegister(llm=llm).sync(nodes(*TEXTS), warm=False)
        assert (report.num_registered, report.num_warm) == (len(TEXTS), 0)
        assert states(llm) == {"registered"}

    def test_a_document_store(self, llm: Hypic):
        store = SimpleDocumentStore()
        store.add_documents(nodes(*TEXTS))
        assert SegmentRegister(llm=llm).sync(store, warm=False).num_created == len(TEXTS)

    def test_what_the_model_does_not_see_makes_no_other_segment(self, llm: Hypic):
        """The node's own hash changes; the text that the model reads does not."""
        register = SegmentRegister(llm=llm)
        hidden = ["score"]
        for score in (1, 2):
            node = TextNode(text=ADA, metadata={"score": score}, excluded_llm_metadata_keys=hidden)
            report = register.sync([node], warm=False)
            assert report.num_created == (score == 1)
        seen = TextNode(text=ADA, metadata={"score": 1})
        assert register.sync([seen], warm=False).num_created == 1

    def test_nothing(self, llm: Hypic):
        assert SegmentRegister(llm=llm).sync([]) == SyncReport(0)

    def test_a_server_that_is_away(self):
        register = SegmentRegister(llm=Hypic(client=Recording(error=ConnectionFailed("away"))))
        with pytest.raises(ConnectionFailed):
            register.sync(nodes(ADA))


class TestPrune:
    def test_what_is_in_none_of_the_nodes_goes(self, llm: Hypic):
        register = SegmentRegister(llm=llm)
        register.sync(nodes(*TEXTS), warm=False)
        edited = ADA.replace("Norwick", "Halden")
        current = nodes(edited, *TEXTS[1:3])
        register.sync(current, warm=False)
        # the old text of the edited one, and two that went away
        assert register.prune(current) == 3
        assert register.prune(current) == 0
        assert len(registered(llm)) == 3

    def test_other_collections_and_other_segments_stay(self, llm: Hypic):
        llm.calls().segments.create(TEXTS[0])
        SegmentRegister(llm=llm, collection="one").sync(nodes(TEXTS[1]), warm=False)
        other = SegmentRegister(llm=llm, collection="two")
        other.sync(nodes(TEXTS[2]), warm=False)
        assert other.prune([]) == 1
        assert len(registered(llm)) == 2

    def test_pages_of_segments(self, llm: Hypic):
        register = SegmentRegister(llm=llm)
        documents = short_documents(1100, "e")
        register.sync(documents, warm=False)
        assert register.prune(documents[:2]) == 1098
        assert len(registered(llm)) == 2


class TestPipeline:
    @pytest.mark.parametrize("is_async", [False, True], ids=["waiting", "on a loop"])
    def test_nodes_pass_through_as_they_are(self, is_async):
        client = AsyncRecording() if is_async else Recording()
        llm = Hypic(client=client, async_client=client if is_async else None)
        register = SegmentRegister(llm=llm, warm="none")
        given = nodes(ADA, "short", ADA, TOMAS)
        dumped = [one.model_dump() for one in given]
        handed = asyncio.run(register.acall(given)) if is_async else register(given)
        assert [one.model_dump() for one in handed] == dumped
        [(items, warm)] = client.registered
        assert ([one["text"] for one in items], warm) == ([ADA, TOMAS], "none")
        assert ADA in llm.registry

    def test_behind_a_splitter(self, llm: Hypic):
        splitter = SentenceSplitter(chunk_size=80, chunk_overlap=0)
        pipeline = IngestionPipeline(transformations=[splitter, SegmentRegister(llm=llm)])
        made = pipeline.run(documents=[Document(text=" ".join(TEXTS))])
        assert len(made) > 3
        assert len(registered(llm)) == len(made)

    def test_a_pipeline_remembers_so_a_server_that_forgot_is_told_by_sync(self, llm: Hypic):
        register = SegmentRegister(llm=llm, warm="none")
        pipeline = IngestionPipeline(transformations=[register])
        given = nodes(*TEXTS)
        pipeline.run(nodes=given)
        for one in registered(llm):
            llm.calls().segments.delete(one)
        pipeline.run(nodes=given)
        assert len(registered(llm)) == 0
        assert register.sync(given, warm=False).num_created == len(TEXTS)

    def test_another_process_gets_all_of_it_or_nothing(self):
        register = SegmentRegister(
            llm=Hypic(base_url="http://127.0.0.1:9"), collection="one", warm="wait"
        )
        again = pickle.loads(pickle.dumps(register))
        assert again.to_dict() == register.to_dict()
        assert again.llm.base_url == "http://127.0.0.1:9"
        with pytest.raises(TypeError, match="num_workers"):
            pickle.dumps(SegmentRegister(llm=Hypic(client=Recording())))
