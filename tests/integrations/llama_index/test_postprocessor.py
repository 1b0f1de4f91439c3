"""`SegmentWarmPostprocessor` over a fake worker."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.errors import ConnectionFailed
from hypic_sdk.integrations.llama_index import Hypic, SegmentWarmPostprocessor
from tests.integrations.llama_index.shelf import nodes
from tests.integrations.recording import AsyncRecording, Recording

ADA, TOMAS = DOCUMENTS["ada"], DOCUMENTS["tomas"]


def found(*texts: str) -> list[NodeWithScore]:
    return [NodeWithScore(node=node, score=0.5) for node in nodes(*texts)]


def handed_on(processor: SegmentWarmPostprocessor, given: list[NodeWithScore], is_async: bool):
    if is_async:
        return asyncio.run(processor.apostprocess_nodes(given))
    return processor.postprocess_nodes(given)


@pytest.mark.parametrize("is_async", [False, True], ids=["waiting", "on a loop"])
class TestNodes:
    @pytest.mark.parametrize("warm", ["none", "wait"])
    def test_they_are_registered_warmed_and_known(self, warm, is_async):
        client = AsyncRecording() if is_async else Recording()
        waiting = Recording(client.hypic) if is_async else client
        llm = Hypic(client=waiting, async_client=client if is_async else None)
        given = found(f" {ADA}\n", TOMAS, "short", ADA)
        handed = handed_on(SegmentWarmPostprocessor(llm=llm, warm=warm), given, is_async)
        assert client.registered == [([ADA, TOMAS], warm)]
        assert [one.node.text for one in handed] == [f" {ADA}\n", TOMAS, "short", ADA]
        assert [one.score for one in handed] == [0.5] * 4
        [ada, tomas] = client.hypic.segments.list().data
        ids = [one.metadata.get("hypic_segment_id") for one in handed]
        assert ids == [ada.id, tomas.id, None, ada.id]
        # the retriever's own objects are left as they were
        assert all(one.metadata == {} for one in given)
        states = client.hypic.segments.lookup([ada, tomas]).values()
        assert {one.state for one in states} == {"warm" if warm == "wait" else "registered"}

        llm.complete(TOMAS)
        part = {"type": "segment", "segment_id": tomas.id, "text": TOMAS}
        assert waiting.sent[0]["content"] == [part]

    def test_marks_are_read_by_nobody(self, is_async):
        node = TextNode(text=ADA, metadata={"page": 3}, excluded_embed_metadata_keys=["page"])
        processor = SegmentWarmPostprocessor(llm=Hypic(client=Recording()))
        [handed] = handed_on(processor, [NodeWithScore(node=node)], is_async)
        assert "hypic_segment_id" in handed.metadata
        for mode in (MetadataMode.LLM, MetadataMode.EMBED):
            assert handed.get_content(mode) == node.get_content(mode)
        # again and again it is the same
        [again] = handed_on(processor, [handed], is_async)
        assert again == handed

    def test_what_the_model_reads_of_a_node_is_the_segment(self, is_async):
        """With its metadata, as the framework writes it; not what it hides from the model."""
        client = Recording()
        node = TextNode(
            text=ADA, metadata={"page": 3, "score": 7}, excluded_llm_metadata_keys=["score"]
        )
        processor = SegmentWarmPostprocessor(llm=Hypic(client=client))
        handed_on(processor, [NodeWithScore(node=node)], is_async)
        assert client.registered == [([f"page: 3\n\n{ADA}"], "async")]

    def test_nothing_found(self, is_async):
        client = Recording()
        assert handed_on(SegmentWarmPostprocessor(llm=Hypic(client=client)), [], is_async) == []
        assert client.registered == []

    def test_a_server_that_is_away_costs_no_node(self, is_async):
        client = (AsyncRecording if is_async else Recording)(error=ConnectionFailed("away"))
        llm = Hypic(client=client, async_client=client if is_async else None)
        [handed] = handed_on(SegmentWarmPostprocessor(llm=llm), found(ADA), is_async)
        assert handed.node.text == ADA
        assert handed.metadata == {"hypic_error": "connection_failed"}
        assert ADA in llm.registry
