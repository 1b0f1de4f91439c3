"""What comes for a job that ended is written nowhere: its slots may be another's by then."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hypic_sdk.engine import fetching
from hypic_sdk.engine.fetching import Fetching
from hypic_sdk.links.courier import Wanted
from hypic_sdk.links.link_ends import Arrival


class Post:
    """An `EntryFetcher` whose arrivals a test tells."""

    def __init__(self) -> None:
        self.tells: list[Callable[[Arrival], None]] = []
        self.dropped: list[int] = []

    def fetch(self, worker: str, wanted: Wanted, tell: Callable[[Arrival], None]) -> int:
        self.tells.append(tell)
        return len(self.tells)

    def drop(self, worker: str, ticket: int) -> None:
        self.dropped.append(ticket)


class Job(SimpleNamespace):
    """As much of a cold job as is asked for here."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def begun(monkeypatch: pytest.MonkeyPatch) -> tuple[Fetching, Post, Any, list[object]]:
    """A job whose entry is on its way, and the list of entries that are written."""
    written: list[object] = []
    monkeypatch.setattr(
        fetching, "unpack_entry", lambda slabs, entry, payload: written.append(entry)
    )
    entry = object()
    job: Any = Job(
        part=None, key=b"k", fetch=None, num_tokens=7, filling=SimpleNamespace(entry=entry),
        cold_ms=0.0, was_fetched=False,
    )  # fmt: skip
    post, one = Post(), Fetching(None)  # type: ignore[arg-type]
    one.connect(post)
    one.begin(job, "w1", "")
    return one, post, job, written


ARRIVAL = Arrival(1, torch.zeros(3, dtype=torch.uint8), 2.5)


@pytest.mark.parametrize("ends", ["before it comes", "after it came", "not"])
def test_an_entry_is_written_only_while_its_job_waits_for_it(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, post, job, written = begun(monkeypatch)
    if ends == "before it comes":
        one.drop(job)
    post.tells[0](ARRIVAL)
    if ends == "after it came":
        one.drop(job)
    done = one.settle()
    is_open = ends == "not"
    assert written == ([job.filling.entry] if is_open else [])
    assert done == ([job] if is_open else [])
    assert job.was_fetched == is_open
    assert post.dropped == ([] if is_open else [1])
    assert not one.is_waiting
    assert one.settle() == []


def test_an_entry_that_comes_twice_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, post, job, written = begun(monkeypatch)
    post.tells[0](ARRIVAL)
    post.tells[0](ARRIVAL)
    assert one.settle() == [job]
    assert len(written) == 1
