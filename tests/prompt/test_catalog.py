"""Registered segments: idempotent, bounded, and forgotten when deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hypic_sdk.errors import ExternalIdConflict, QuotaExceeded, RequestError
from hypic_sdk.prompt.catalog import CatalogLimits, NewSegment, PastPlaces, SegmentCatalog
from hypic_sdk.prompt.memory_catalog import MemoryCatalog
from hypic_sdk.prompt.segment import segment_id
from tests.prompt import tiny


def catalog(limits: CatalogLimits | None = None, encode: Callable | None = None) -> MemoryCatalog:
    tokenizer = tiny.tokenizer()
    return MemoryCatalog(
        encode or tokenizer.encode_text,
        tokenizer.fingerprint,
        limits=limits or CatalogLimits(),
        now_s=lambda: 1_800_000_000.9,
    )


@given(text=tiny.full_texts)
def test_a_text_comes_back_as_it_went_in(text):
    segment, created = catalog().register(NewSegment(text))
    assert created
    assert (segment.id, segment.text) == (segment_id(text), text)
    assert segment.token_ids == tiny.tokenizer().encode_text(text)
    assert segment.tokenizer_fingerprint == tiny.tokenizer().fingerprint
    assert segment.created_at == 1_800_000_000


def test_the_same_text_is_the_same_segment_and_is_tokenised_once():
    calls = []

    def encode(text: str) -> tuple[int, ...]:
        calls.append(text)
        return (1,)

    segments = catalog(encode=encode)
    first, _ = segments.register(NewSegment("a", title="A", metadata={"page": 1}))
    again, created = segments.register(NewSegment("a"))
    assert not created
    assert again == first
    assert calls == ["a"]


def test_what_is_said_anew_replaces_what_was_said():
    segments = catalog()
    segments.register(NewSegment("a", title="A", metadata={"page": 1}))
    segments.register(NewSegment("a", title="B"))
    found = segments.get(segment_id("a"))
    assert (found.title, dict(found.metadata)) == ("B", {"page": 1})


class TestExternalIds:
    def test_an_external_id_names_a_segment(self):
        segments = catalog()
        first, _ = segments.register(NewSegment("a", external_id="doc"))
        assert segments.find_external("doc") == first
        assert segments.find_external("other") is None

    def test_it_names_one_text_only(self):
        segments = catalog()
        segments.register(NewSegment("a", external_id="doc"))
        with pytest.raises(ExternalIdConflict, match="'doc' names seg_") as caught:
            segments.register(NewSegment("b", external_id="doc"))
        assert caught.value.details["segment_id"] == segment_id("a")
        assert segments.get(segment_id("b")) is None

    def test_unless_it_is_moved_on_purpose(self):
        segments = catalog()
        segments.register(NewSegment("a", external_id="doc"))
        later, _ = segments.register(NewSegment("b", external_id="doc"), replace_external=True)
        assert segments.find_external("doc") == later
        assert segments.get(segment_id("a")).external_id is None

    def test_a_segment_has_one(self):
        segments = catalog()
        segments.register(NewSegment("a", external_id="old"))
        segments.register(NewSegment("a", external_id="new"))
        assert segments.find_external("old") is None
        segments.register(NewSegment("b", external_id="old"))
        assert segments.find_external("old").text == "b"

    def test_deleting_the_segment_frees_it(self):
        segments = catalog()
        segments.register(NewSegment("a", external_id="doc"))
        segments.delete(segment_id("a"))
        segments.register(NewSegment("b", external_id="doc"))
        assert segments.find_external("doc").text == "b"


class TestLimits:
    def test_number_of_segments(self):
        segments = catalog(CatalogLimits(num_segments=2))
        for text in "ab":
            segments.register(NewSegment(text))
        segments.register(NewSegment("a"))
        with pytest.raises(QuotaExceeded) as caught:
            segments.register(NewSegment("c"))
        assert caught.value.details == {
            "quota": "num_segments",
            "num_segments": 2,
            "limit_segments": 2,
        }
        segments.delete(segment_id("a"))
        segments.register(NewSegment("c"))

    def test_bytes_in_all(self):
        segments = catalog(CatalogLimits(total_bytes=5))
        segments.register(NewSegment("日"))
        with pytest.raises(QuotaExceeded) as caught:
            segments.register(NewSegment("abc"))
        assert caught.value.details == {
            "quota": "text_bytes",
            "needed_bytes": 6,
            "limit_bytes": 5,
        }
        segments.register(NewSegment("ab"))
        segments.delete(segment_id("日"))
        segments.register(NewSegment("abc"))

    def test_bytes_of_one(self):
        with pytest.raises(RequestError) as caught:
            catalog(CatalogLimits(segment_bytes=5)).register(NewSegment("日本"))
        assert caught.value.details == {"num_bytes": 6, "limit_bytes": 5}

    @pytest.mark.parametrize("text", ["", "a\ud800"])
    def test_a_text_that_is_none(self, text):
        with pytest.raises(RequestError):
            catalog().register(NewSegment(text))

    def test_a_text_without_tokens(self):
        with pytest.raises(RequestError, match="at least one token"):
            catalog(encode=lambda text: ()).register(NewSegment("a"))


def check_paging(segments: SegmentCatalog, plan: Sequence[tuple[int, bool]]) -> None:
    """Page by two; between pages delete what the plan names, or the last that was seen."""
    ids = [segments.register(NewSegment(f"text {n}"))[0].id for n in range(12)]
    steps, seen, deleted, after = iter(plan), [], set(), None
    while True:
        page = segments.page(after=after, limit=2)
        seen += [segment.id for segment in page.segments]
        if not page.has_more:
            break
        after = page.segments[-1].id
        for number, is_last in [step for step, _ in zip(steps, range(2), strict=False)]:
            victim = after if is_last else ids[number]
            deleted |= segments.delete_many([victim])
    assert len(set(seen)) == len(seen)
    assert [id_ for id_ in seen if id_ not in deleted] == [i for i in ids if i not in deleted]


class TestPages:
    def test_pages_cover_all_in_order_of_registration(self):
        segments = catalog()
        ids = [segments.register(NewSegment(text))[0].id for text in "zyxwv"]
        segments.register(NewSegment("x"))
        seen, after = [], None
        while True:
            page = segments.page(after=after, limit=2)
            seen += [segment.id for segment in page.segments]
            if not page.has_more:
                break
            after = seen[-1]
        assert seen == ids

    def test_an_empty_catalog_has_an_empty_page(self):
        page = catalog().page()
        assert (page.segments, page.has_more) == ((), False)

    @given(plan=st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=30))
    def test_whatever_is_deleted_meanwhile_every_other_is_seen_once(self, plan):
        check_paging(catalog(), plan)

    def test_the_places_that_are_remembered_are_bounded(self):
        past = PastPlaces(limit=2)
        for number, id_ in enumerate("abc"):
            past.note(id_, number)
        assert [past.number(id_) for id_ in "abc"] == [None, 1, 2]

    def test_after_an_unknown_id_is_an_error(self):
        with pytest.raises(RequestError):
            catalog().page(after="seg_none")


def test_threads_register_each_text_once():
    segments = catalog()
    created: list[bool] = []

    def register() -> None:
        created.extend(segments.register(NewSegment(f"text {n}"))[1] for n in range(50))

    threads = [Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created.count(True) == 50
    assert len(segments.page(limit=1000).segments) == 50


class CatalogMachine(RuleBasedStateMachine):
    """Against a plain list: any order of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.segments = catalog(CatalogLimits(num_segments=4, total_bytes=12))
        self.model: dict[str, str | None] = {}

    @rule(text=st.sampled_from(["a", "bb", "ccc", "dddd", "eeeee"]), name=st.sampled_from("xy"))
    def register(self, text: str, name: str) -> None:
        fits = text in self.model or (
            len(self.model) < 4 and sum(map(len, self.model)) + len(text) <= 12
        )
        try:
            self.segments.register(NewSegment(text, external_id=name), replace_external=True)
        except QuotaExceeded:
            assert not fits
            return
        assert fits
        for other, owned in self.model.items():
            if owned == name:
                self.model[other] = None
        self.model[text] = name

    @rule(text=st.sampled_from(["a", "bb", "ccc", "dddd", "eeeee"]))
    def delete(self, text: str) -> None:
        assert self.segments.delete(segment_id(text)) == (text in self.model)
        self.model.pop(text, None)

    @invariant()
    def agrees(self) -> None:
        page = self.segments.page(limit=100)
        assert {s.text: s.external_id for s in page.segments} == self.model
        for name in "xy":
            owner = next((text for text, owned in self.model.items() if owned == name), None)
            found = self.segments.find_external(name)
            assert (found.text if found else None) == owner


TestCatalogMachine = CatalogMachine.TestCase
TestCatalogMachine.settings = settings(max_examples=40, stateful_step_count=20)
