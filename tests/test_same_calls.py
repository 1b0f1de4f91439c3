"""What a server can be asked through a client, `LocalHypic` can be asked: the same calls."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from hypic_sdk import AsyncHypic, Hypic, LocalHypic
from hypic_sdk.client.async_stream import AsyncChunkStream
from hypic_sdk.client.async_warm_job import AsyncWarmJob
from hypic_sdk.client.blocking_segments import WarmJob
from hypic_sdk.client.blocking_stream import ChunkStream
from hypic_sdk.errors import (
    DeadlineExceeded,
    HypicError,
    JobNotFound,
    RequestError,
    SegmentNotFound,
)
from hypic_sdk.offline.local import SCRIPTED_NAME
from hypic_sdk.offline.segments import LocalWarmJob
from hypic_sdk.scripted import open_scripted
from hypic_sdk.server.app import create_app
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.service import ChunkStream as LocalChunkStream
from hypic_sdk.service import ModelFacts
from tests.server.served import serve
from tests.service.services import saying, service

NOWHERE = "http://127.0.0.1:9"
# what only one of them has, each with the reason
LOCAL_ONLY = {
    "over": "a service that is there already has no address",
    "scripted": "an engine of this process",
    "service": "what stands behind the calls is here",
    "worker": "what stands behind the calls is here",
}
STREAM_ONLY = {
    "open": "a stream of this process is on its way when it is there",
    "request_id": "a server's stands in the chunks",
}

Calls = dict[str, tuple[tuple[str, Any, Any], ...]]


def is_ours(value: object) -> bool:
    return type(value).__module__.startswith("hypic_sdk")


def calls_of(value: object, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Public calls by their dotted name, those of what stands behind a public name too."""
    for name in dir(value):
        if name.startswith("_") or name in LOCAL_ONLY:
            continue
        found = getattr(value, name)
        if inspect.isroutine(found):
            yield prefix + name, parameters(found)
        elif is_ours(found) and depth < 3:
            yield from calls_of(found, f"{prefix}{name}.", depth + 1)


def parameters(call: Any) -> tuple[tuple[str, Any, Any], ...]:
    return tuple(
        (one.name, one.kind, one.default) for one in inspect.signature(call).parameters.values()
    )


def of_class(kind: type) -> Calls:
    names = (name for name in dir(kind) if not name.startswith("_") and name not in STREAM_ONLY)
    members = {name: inspect.getattr_static(kind, name) for name in names}
    return {
        name: parameters(one) if inspect.isroutine(one) else () for name, one in members.items()
    }


@pytest.fixture
def local() -> LocalHypic:
    return LocalHypic.over(service(saying("On the Ash.")))


def test_the_calls_and_their_arguments_are_the_same(local):
    with Hypic(NOWHERE) as waiting:
        there = dict(calls_of(waiting))
    assert {"segments.warm.create", "chat.completions.stream", "prompts.explain"} <= there.keys()
    assert dict(calls_of(local)) == there
    assert dict(calls_of(AsyncHypic(NOWHERE))) == there


@pytest.mark.parametrize("other", [LocalWarmJob, AsyncWarmJob])
def test_warm_jobs_are_the_same(other):
    assert of_class(other) == of_class(WarmJob)


@pytest.mark.parametrize("other", [LocalChunkStream, AsyncChunkStream])
def test_streams_are_the_same(other):
    assert of_class(other) == of_class(ChunkStream)


class TestWhatOnlyServersHad:
    def test_tokens(self, local):
        told = local.tokenize(prompt="Norwick lies on the Ash.")
        assert told.count == len(told.tokens) > 0
        chat = local.tokenize(messages=[{"role": "user", "content": "Norwick lies on the Ash."}])
        assert chat.count > told.count
        with pytest.raises(TypeError, match="either"):
            local.tokenize()

    def test_what_a_prompt_would_come_to(self, local):
        text = "Norwick lies on the Ash."
        told = local.prompts.explain(prompt=[local.segments.create(text), "Where?"])
        parts = [{"type": "segment", "text": text}, "Where?"]
        assert told.prompt_tokens == local.tokenize(prompt=parts).count
        with pytest.raises(TypeError, match="max_token"):
            local.prompts.explain(prompt=text, max_token=3)

    def test_terms_and_pins(self, local):
        made = local.segments.create("A town", title="T", ttl="1h", priority=7, metadata={"a": 1})
        assert (made.retention.priority, made.expires_at) == (7, made.created_at + 3600)
        changed = local.segments.update(made, title="U", ttl="never")
        assert (changed.title, changed.expires_at, changed.metadata) == ("U", None, {"a": 1})
        assert local.segments.pin(made, ttl=60).pinned
        # this service's own clock stands still
        assert local.segments.retrieve(made).pin_expires_at == 1_800_000_060
        assert not local.segments.unpin(made).pinned
        assert [one.id for one in local.segments.list(metadata={"a": 1}).data] == [made.id]
        assert not local.segments.list(metadata={"a": 2}).data

    def test_deleting_many_three_ways(self, local):
        said = [{"text": f"town {n}", "external_id": f"t{n}", "metadata": {"of": n % 2}}
                for n in range(6)]  # fmt: skip
        made = local.segments.create_many(said)
        [gone, unknown] = local.segments.delete_many([made[0], "seg_" + "a" * 32])
        assert (gone.deleted, unknown.deleted) == (True, False)
        [gone] = local.segments.delete_many(external_ids=["t1"])
        assert gone.id == made[1].id
        assert len(local.segments.delete_many(metadata={"of": 0})) == 2
        left = [one.id for one in local.segments.list(limit=1)]
        assert left == [made[3].id, made[5].id]
        with pytest.raises(RequestError):
            local.segments.delete_many()

    def test_jobs_are_found_again(self, local):
        made = local.segments.create_many(["A town", "B town"])
        job = local.segments.warm.create(made, priority="background")
        assert job.wait(timeout_s=10).priority == "background"
        assert [one.status for one in job.events()][-1] == "succeeded"
        other = local.segments.warm.create(made)
        assert other.cancel().id == other.id
        assert [one.id for one in local.segments.warm.list()] == [other.id, job.id]
        assert local.segments.warm.retrieve(job.id).status == "succeeded"
        with pytest.raises(JobNotFound):
            local.segments.warm.retrieve("warm_0")

    def test_one_bad_text_keeps_no_other_from_being_registered(self, local):
        local.segments.create("A town", external_id="taken")
        with pytest.raises(RequestError) as caught:
            local.segments.create_many([{"text": "B town", "external_id": "taken"}, "C town"])
        assert caught.value.code == "external_id_conflict"
        assert len(local.segments.list().data) == 2
        with pytest.raises(SegmentNotFound):
            local.segments.pin("seg_" + "a" * 32)

    def test_other_limits_share_the_model_and_its_end(self):
        ended = []
        local = LocalHypic.over(service(saying("x")), lambda: ended.append(1))
        other = local.with_options(timeout_s=5.0, max_retries=3)
        assert other.service is local.service
        assert (local.is_ready(), other.is_ready()) == (True, True)
        other.close()
        local.close()
        assert (ended, local.is_ready()) == ([1], False)


class TestOverAnEngine:
    def test_books_and_time(self):
        with LocalHypic.scripted() as local:
            before = local.cache.stats()
            local.segments.create("A town on the river. " * 40, warm="wait")
            assert local.cache.stats().num_segments == before.num_segments + 1
            ask = {"messages": [{"role": "user", "content": "Say something long."}]}
            hurried = local.with_options(timeout_s=1e-6)
            with pytest.raises(DeadlineExceeded):
                hurried.chat.completions.create(**ask)
            with pytest.raises(DeadlineExceeded):
                list(local.completions.stream(prompt="On", timeout_s=1e-6))
            assert local.chat.completions.create(**ask).choices
            assert hurried.chat.completions.create(**ask, timeout_s=60).choices


UNKNOWN = "seg_" + "a" * 32
ASK = [{"role": "user", "content": "hi"}]
# what a server refuses, LocalHypic refuses, in the same words
REFUSED = {
    "a text that no context holds": lambda one: one.segments.create("word " * 20_000),
    "one of several": lambda one: one.segments.create_many(["A town", "word " * 20_000]),
    "no text": lambda one: one.segments.create(""),
    "a lone surrogate": lambda one: one.segments.create("a\ud800"),
    "large metadata": lambda one: one.segments.create("A town", metadata={"a": "x" * 20_000}),
    "no time": lambda one: one.segments.create("A town", ttl="12x"),
    "nothing to delete": lambda one: one.segments.delete_many(),
    "an unknown id": lambda one: one.segments.retrieve(UNKNOWN),
    "no id": lambda one: one.segments.retrieve("zzz"),
    "no id to delete": lambda one: one.segments.delete("zzz"),
    "no id to change": lambda one: one.segments.update("zzz", title="T"),
    "no id to look up": lambda one: one.segments.lookup(["zzz"]),
    "no id to warm": lambda one: one.segments.warm.create(["zzz"]),
    "nothing to warm": lambda one: one.segments.warm.create([]),
    "no name of anything": lambda one: one.segments.find("nobody"),
    "a page of none": lambda one: list(one.segments.list(limit=0)),
    "too large a page": lambda one: list(one.segments.list(limit=1001)),
    "behind nothing": lambda one: list(one.segments.list(after=UNKNOWN)),
    "no messages": lambda one: one.chat.completions.create(messages=[]),
    "too long": lambda one: one.completions.create(prompt="word " * 20_000),
    "no text to go on": lambda one: one.completions.create(prompt=""),
    "no option": lambda one: one.chat.completions.create(messages=ASK, hypic={"foo": 1}),
    "no model": lambda one: one.chat.completions.create(messages=ASK, model="nobody"),
    "a missing segment": lambda one: one.chat.completions.create(
        messages=ASK, documents=[{"segment_id": UNKNOWN}]
    ),
    "no grammar": lambda one: one.chat.completions.create(
        messages=ASK, structured_outputs={"regex": "("}
    ),
    "no time at all": lambda one: one.with_options(timeout_s=0),
    "less than no time": lambda one: one.chat.completions.create(messages=ASK, timeout_s=-1),
}


@pytest.fixture(scope="module")
def here_and_there() -> Iterator[tuple[LocalHypic, Hypic]]:
    opened = open_scripted()
    ready = opened.ready
    services = ServiceFactory(
        tokenizer=opened.tokenizer,
        template=opened.template,
        worker=opened.worker,
        model_name=SCRIPTED_NAME,
        facts=ModelFacts(opened.config.reuse, ready.conv_width, ready.max_context_tokens),
    )
    app = create_app(services, opened.worker)
    with (
        opened.worker,
        LocalHypic.scripted() as local,
        serve(app) as url,
        Hypic(url, max_retries=0) as client,
    ):
        yield local, client


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_server_refuses_is_refused_in_this_process_too(here_and_there, name):
    said = []
    for one in here_and_there:
        with pytest.raises(HypicError) as caught:
            REFUSED[name](one)
        said.append((type(caught.value), caught.value.message))
    assert said[0] == said[1]
