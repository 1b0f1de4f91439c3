"""Pins, priorities, limits and expiry over a worker that keeps books, on a clock of the test's."""

from __future__ import annotations

from typing import Any

import pytest

from hypic_sdk.errors import (
    ExternalIdConflict,
    HypicError,
    PinBudgetExhausted,
    QuotaExceeded,
    SegmentNotFound,
    SegmentsMissing,
    WorkerLost,
)
from hypic_sdk.prompt.memory_catalog import MemoryCatalog
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.service import Service
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.segments import (
    RegisterRequest,
    SegmentIds,
    SegmentSelection,
    SegmentUpdate,
    WarmCreate,
)
from tests.prompt import tiny
from tests.service.fake_worker import FakeWorker
from tests.service.services import text_ids


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Kept:
    """A service, its worker and its clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.worker = FakeWorker(text_ids("a town"))
        tokenizer = tiny.tokenizer()
        self.service = Service(
            tokenizer=tokenizer,
            template=tiny.chat_template(tiny.CHATML, tokenizer),
            catalog=MemoryCatalog(tokenizer.encode_text, tokenizer.fingerprint, now_s=self.clock),
            worker=self.worker,
            model_name="tiny",
            now_s=self.clock,
        )
        self.segments = self.service.segments
        self.keeper = self.segments.keeper

    def register(self, *items: Any, **fields: Any) -> list[Any]:
        texts = [{"text": one} if isinstance(one, str) else one for one in items]
        return self.segments.register(parse(RegisterRequest, {"segments": texts, **fields}))

    def warm(self, *ids: str, **fields: Any) -> Any:
        body = parse(WarmCreate, {"segment_ids": list(ids), **fields})
        return self.segments.warm(body).wait(timeout_s=10)

    def update(self, id_: str, **fields: Any) -> Any:
        return self.segments.update(id_, parse(SegmentUpdate, fields))

    def ask(self, *documents: dict[str, str]) -> Any:
        messages = [{"role": "user", "content": "Where?"}]
        body = parse(ChatRequest, {"messages": messages, "documents": documents})
        return self.service.chat(body)

    def lookup(self, id_: str) -> Any:
        return self.segments.lookup(parse(SegmentIds, {"segment_ids": [id_]}))[id_]

    def key(self, text: str) -> tuple[str, tuple[int, ...]]:
        return ("", tuple(text_ids(text)))


@pytest.fixture
def kept() -> Kept:
    return Kept()


class TestExpiry:
    def test_it_is_refused_at_once_and_removed_by_the_sweep(self, kept):
        [first] = kept.register({"text": "A town", "ttl": "1m", "external_id": "doc"})
        assert first.expires_at == 1_800_000_060
        kept.warm(first.id)
        kept.clock.now_s += 59
        assert kept.segments.retrieve(first.id).id == first.id
        kept.clock.now_s += 1
        for call in (
            lambda: kept.segments.retrieve(first.id),
            lambda: kept.segments.find_external("doc"),
            lambda: kept.segments.delete(first.id),
            lambda: kept.update(first.id, title="T"),
            lambda: kept.warm(first.id),
        ):
            with pytest.raises(SegmentNotFound):
                call()
        with pytest.raises(SegmentsMissing):
            kept.ask({"segment_id": first.id})
        assert kept.lookup(first.id).state == "unknown"
        assert kept.segments.list_segments().data == []
        assert kept.key("A town") in kept.worker.warm  # until the sweep
        assert kept.keeper.sweep() == 1
        assert kept.key("A town") not in kept.worker.warm
        assert kept.keeper.sweep() == 0

    def test_a_text_that_rides_along_heals_and_a_wrong_one_is_told(self, kept):
        [first] = kept.register({"text": "A town", "ttl": 5})
        kept.clock.now_s += 5
        kept.keeper.sweep()
        reply = kept.ask({"segment_id": first.id, "text": "A town"})
        assert [one.status for one in reply.cache.segments] == ["cold"]
        with pytest.raises(HypicError) as caught:
            kept.ask({"segment_id": first.id, "text": "B town"})
        assert caught.value.code == "segment_text_mismatch"
        # to ride along is not to be registered
        assert kept.lookup(first.id).state == "unknown"

    def test_registering_again_renews_and_never_ends_it(self, kept):
        [first] = kept.register({"text": "A town", "ttl": "1m"})
        kept.clock.now_s += 50
        [again] = kept.register({"text": "A town", "ttl": "1m"})
        assert (again.created, again.expires_at) == (False, first.expires_at + 50)
        [same] = kept.register("A town")
        assert same.expires_at == again.expires_at
        assert kept.update(first.id, ttl="never").expires_at is None
        kept.clock.now_s += 10**6
        assert kept.keeper.sweep() == 0
        assert kept.segments.retrieve(first.id)

    def test_what_was_registered_anew_is_not_swept(self, kept):
        kept.register({"text": "A town", "ttl": 5, "title": "old"})
        kept.clock.now_s += 9
        [again] = kept.register("A town")
        assert (again.created, again.title, again.expires_at) == (True, None, None)
        assert kept.keeper.sweep() == 0
        assert kept.segments.retrieve(again.id)

    @pytest.mark.parametrize("ttl", [0, -1, True, 1.5, "0s", "5", "5y", "", "99999999999d", 10**12])
    def test_times_that_are_none(self, kept, ttl):
        with pytest.raises(HypicError) as caught:
            kept.register({"text": "A town", "ttl": ttl})
        assert caught.value.http_status == 400


class TestPins:
    def test_pinning_and_unpinning(self, kept):
        [first] = kept.register("A town")
        assert kept.update(first.id, pin={}).pinned
        assert kept.key("A town") in kept.worker.pinned
        assert kept.lookup(first.id).pinned
        assert not kept.update(first.id, pin=False).pinned
        assert not kept.worker.pinned

    def test_a_pin_with_an_end(self, kept):
        [first] = kept.register("A town")
        assert kept.update(first.id, pin={"ttl": "1h"}).pin_expires_at == 1_800_003_600
        kept.clock.now_s += 3600
        assert not kept.segments.retrieve(first.id).pinned
        assert kept.worker.pinned
        kept.keeper.sweep()
        assert not kept.worker.pinned

    def test_a_budget_with_both_numbers(self, kept):
        first, second = kept.register("A town", "B town")
        one = 8 * first.tokens
        kept.keeper.pinned_bytes_limit = one
        kept.update(first.id, pin={})
        with pytest.raises(PinBudgetExhausted) as caught:
            kept.update(second.id, pin={}, title="T")
        assert caught.value.http_status == 409
        assert caught.value.details == {"needed_bytes": 2 * one, "limit_bytes": one}
        assert not kept.segments.retrieve(second.id).pinned
        kept.update(first.id, pin={"ttl": 9})  # again the same costs nothing
        kept.update(first.id, pin=False)
        assert kept.update(second.id, pin={}).pinned
        assert kept.keeper.pinned_bytes == one

    def test_a_warm_job_may_pin(self, kept):
        first, second = kept.register("A town", "B town")
        job = kept.warm(first.id, second.id, pin={"ttl": "1h"}, priority="background")
        assert (job.status, job.priority) == ("succeeded", "background")
        assert len(kept.worker.pinned) == 2
        assert kept.worker.messages[-1].background

    def test_deleting_unpins_by_the_deletion(self, kept):
        [first] = kept.register("A town")
        kept.update(first.id, pin={})
        kept.segments.delete(first.id)
        assert kept.keeper.pinned_bytes == 0


class TestAnotherEngine:
    def test_it_is_told_all_that_is_wished(self, kept):
        first, _ = kept.register("A town", {"text": "B town", "retention": {"priority": 7}})
        kept.update(first.id, pin={})
        kept.keeper.cached_bytes_limit = 999
        worker = kept.worker
        told = (set(worker.pinned), dict(worker.priorities))
        assert told == ({kept.key("A town")}, {kept.key("B town"): 7, kept.key("A town"): 50})
        worker.pinned.clear(), worker.priorities.clear()
        kept.keeper.restore()
        assert worker.pinned == {kept.key("A town")}
        assert worker.priorities == {kept.key("B town"): 7}
        assert worker.limits == {"": 999}

    def test_wishes_without_an_engine_are_remembered(self, kept):
        [first] = kept.register("A town")
        ask = kept.worker.ask
        kept.worker.ask = lost
        assert kept.update(first.id, pin={}, retention={"priority": 3}).pinned
        assert kept.lookup(first.id).state == "registered"
        kept.worker.ask = ask
        kept.keeper.restore()
        assert kept.worker.pinned
        assert kept.worker.priorities == {kept.key("A town"): 3}


def lost(*asked: object) -> None:
    raise WorkerLost("it is gone")


class TestSelections:
    def test_by_external_id(self, kept):
        kept.register({"text": "A town", "external_id": "a"}, {"text": "B", "external_id": "b"})
        chosen = parse(SegmentSelection, {"external_ids": ["b", "none", "b"]})
        told = kept.segments.delete_many(chosen).data
        assert [(one.id, one.external_id, one.deleted) for one in told] == [
            (segment_id("B"), "b", True),
            (None, "none", False),
        ]
        assert [one.external_id for one in kept.segments.list_segments().data] == ["a"]

    def test_by_what_metadata_say(self, kept):
        kept.register(*({"text": f"{n} town", "metadata": {"odd": bool(n % 2)}} for n in range(6)))
        listed = kept.segments.list_segments(says={"odd": True}, limit=2)
        assert (len(listed.data), listed.has_more) == (2, True)
        rest = kept.segments.list_segments(says={"odd": True}, limit=2, after=listed.last_id)
        assert (len(rest.data), rest.has_more) == (1, False)
        told = kept.segments.delete_many(parse(SegmentSelection, {"metadata": {"odd": True}}))
        assert [one.deleted for one in told.data] == [True] * 3
        assert [one.metadata["odd"] for one in kept.segments.list_segments().data] == [False] * 3

    @pytest.mark.parametrize(
        "body",
        [{}, {"segment_ids": []}, {"metadata": {}}, {"external_ids": ["a"], "metadata": {"a": 1}}],
    )
    def test_exactly_one_way(self, kept, body):
        kept.register("A town")
        with pytest.raises(HypicError):
            kept.segments.delete_many(parse(SegmentSelection, body))
        assert kept.segments.list_segments().data

    def test_a_text_deleted_under_a_request_leaves_no_entry(self, kept):
        [first] = kept.register("A town")
        delete = kept.worker.delete

        def delete_and_warm(parts: Any, namespace: str) -> None:
            delete(parts, namespace)
            if kept.segments.list_segments().data:  # the first of two: the text is still there
                kept.ask({"segment_id": first.id})

        kept.worker.delete = delete_and_warm
        kept.segments.delete(first.id)
        assert kept.key("A town") not in kept.worker.warm

    def test_a_change_that_comes_after_the_deletion_does_not_bring_it_back(self, kept):
        [first] = kept.register("A town")
        find = kept.segments._find

        def find_and_delete(id_: str) -> Any:
            found = find(id_)
            kept.segments.delete(id_)
            return found

        kept.segments._find, before = find_and_delete, kept.segments.delete
        kept.segments.delete = lambda id_: kept.keeper.forget([find(id_)])
        with pytest.raises(SegmentNotFound):
            kept.update(first.id, title="T")
        kept.segments._find, kept.segments.delete = find, before
        assert kept.segments.list_segments().data == []


class TestQuotas:
    def test_external_ids_that_are_taken(self, kept):
        kept.register({"text": "A town", "external_id": "doc"})
        with pytest.raises(ExternalIdConflict) as caught:
            kept.register({"text": "B town", "external_id": "doc"})
        assert caught.value.http_status == 409
        [moved] = kept.register({"text": "B town", "external_id": "doc"}, replace_external=True)
        assert kept.segments.find_external("doc").id == moved.id

    def test_a_job_that_can_never_be_warm_as_a_whole(self, kept):
        first, second = kept.register("A town", "B town")
        kept.keeper.cached_bytes_limit = 8 * first.tokens
        assert kept.warm(first.id).counts.done == 1
        with pytest.raises(QuotaExceeded) as caught:
            kept.warm(first.id, second.id)
        assert caught.value.details["limit_bytes"] == 8 * first.tokens
        assert caught.value.details["needed_bytes"] == 16 * first.tokens

    def test_warming_names_all_that_are_unknown(self, kept):
        [first] = kept.register("A town")
        unknown = [segment_id("x"), segment_id("y")]
        with pytest.raises(SegmentNotFound) as caught:
            kept.warm(first.id, *unknown)
        assert caught.value.details["segment_ids"] == unknown

    def test_clearing_leaves_the_texts(self, kept):
        [first] = kept.register("A town")
        kept.warm(first.id)
        assert kept.lookup(first.id).state == "warm"
        assert kept.keeper.cached_bytes > 0
        assert kept.keeper.clear() == 1
        assert (kept.lookup(first.id).state, kept.keeper.cached_bytes) == ("registered", 0)
