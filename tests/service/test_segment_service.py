"""Registered segments over a worker that says what it is told to."""

from __future__ import annotations

from typing import Any

import pytest

from hypic_sdk.errors import QuotaExceeded, SegmentNotFound, SegmentsMissing
from hypic_sdk.prompt.catalog import CatalogLimits
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.segments import RegisterRequest, SegmentIds
from tests.service.services import saying, service, text_ids
from tests.service.test_service import DOCUMENTS, chat, with_documents


class TestSegments:
    def register(self, over: Any, *texts: str, **fields: Any) -> list[Any]:
        items = [{"text": text, **fields} for text in texts]
        return over.segments.register(parse(RegisterRequest, {"segments": items}))

    def ids(self, *ids: str) -> SegmentIds:
        return parse(SegmentIds, {"segment_ids": list(ids)})

    def test_registering_and_finding(self):
        over = service(saying("x"))
        [first] = self.register(over, "A town", external_id="doc", metadata={"page": 1})
        assert (first.id, first.created) == (segment_id("A town"), True)
        assert first.tokens == len(text_ids("A town"))
        assert self.register(over, "A town")[0].created is False
        found = over.segments.retrieve(first.id)
        assert (found.external_id, found.metadata, found.created) == ("doc", {"page": 1}, None)
        assert over.segments.find_external("doc") == found
        listed = over.segments.list_segments()
        assert (listed.data, listed.has_more, listed.last_id) == ([found], False, first.id)

    def test_a_chat_names_a_registered_segment_by_its_id(self):
        worker = saying("x")
        over = service(worker)
        [first] = self.register(over, "A town")
        over.chat(chat(documents=[{"segment_id": first.id}]))
        assert list(worker.last.prompt.parts[1].token_ids) == text_ids("A town")

    def test_what_is_not_registered(self):
        over = service(saying("x"))
        unknown = segment_id("nothing")
        for call in (over.segments.retrieve, over.segments.delete):
            with pytest.raises(SegmentNotFound, match=unknown):
                call(unknown)
        with pytest.raises(SegmentNotFound, match="'doc'"):
            over.segments.find_external("doc")
        with pytest.raises(SegmentsMissing):
            over.chat(chat(documents=[{"segment_id": unknown}]))
        assert over.segments.list_segments().last_id is None

    def test_on_missing_error_wants_every_segment_registered(self):
        over = service(saying("x"))
        [first] = self.register(over, DOCUMENTS[0])
        body = with_documents(hypic={"on_missing": "error"})
        with pytest.raises(SegmentsMissing) as caught:
            over.chat(body)
        assert caught.value.details["segment_ids"] == [segment_id(DOCUMENTS[1])]
        assert over.chat(with_documents((DOCUMENTS[0],), hypic={"on_missing": "error"}))
        assert first.id == segment_id(DOCUMENTS[0])

    def test_lookup_tells_what_is_warm(self):
        over = service(saying("x"))
        warm, cold = self.register(over, "A town", "B town")
        over.segments.warm(self.ids(warm.id)).wait(timeout_s=10)
        found = over.segments.lookup(self.ids(warm.id, cold.id, segment_id("nothing")))
        assert [one.state for one in found.values()] == ["warm", "registered", "unknown"]
        assert [one.tokens for one in found.values()] == [warm.tokens, cold.tokens, None]
        assert over.segments.lookup(self.ids(segment_id("nothing"))).popitem()[1].state == "unknown"

    def test_deleting_forgets_text_and_entry(self):
        worker = saying("x")
        over = service(worker)
        [first] = self.register(over, "A town")
        over.segments.warm(self.ids(first.id)).wait(timeout_s=10)
        assert over.segments.delete(first.id).deleted
        assert not worker.warm
        with pytest.raises(SegmentNotFound):
            over.segments.retrieve(first.id)

    def test_a_full_catalog_keeps_what_came_before(self):
        over = service(saying("x"), limits=CatalogLimits(num_segments=1))
        with pytest.raises(QuotaExceeded):
            self.register(over, "A town", "B town")
        assert [one.id for one in over.segments.list_segments().data] == [segment_id("A town")]
