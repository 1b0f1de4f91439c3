"""Both clients against a server over a fake worker."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator

import pytest

from hypic_sdk import AsyncHypic, Hypic
from hypic_sdk.errors import (
    ConfigError,
    ConnectionFailed,
    DeadlineExceeded,
    JobNotFound,
    NotAuthenticated,
    PoolExhausted,
    QueueFull,
    RequestError,
    RequestTimeout,
    SegmentNotFound,
    SegmentsMissing,
    UnknownModel,
    UnsupportedOption,
    WorkerLost,
)
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.server.tenants import Tenants
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import serve_fake

SAID = "a town 🙂 there"
ASK = [{"role": "user", "content": "Where?"}]
UNKNOWN = "seg_" + "a" * 32


@pytest.fixture
def worker() -> Iterator[PushingWorker]:
    worker = PushingWorker(tiny.tokenizer().encode_text(SAID))
    yield worker
    worker.join()


@pytest.fixture
def url(worker: PushingWorker) -> Iterator[str]:
    with serve_fake(worker) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[Hypic]:
    with Hypic(url, max_retries=0) as client:
        yield client


def until(holds, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "it does not come to hold"
        time.sleep(0.01)


class TestSegments:
    def test_create_find_change_delete(self, client):
        made = client.segments.create("A town", external_id="doc", title="T", metadata={"page": 1})
        assert made.created
        assert made.id == segment_id("A town")
        assert client.segments.retrieve(made) == client.segments.find("doc")
        assert client.segments.update(made, title="U").title == "U"
        assert client.segments.list(limit=1).data[0].title == "U"
        assert client.segments.delete(made).deleted
        with pytest.raises(SegmentNotFound) as caught:
            client.segments.retrieve(made)
        assert caught.value.request_id

    def test_terms_pins_and_what_metadata_say(self, client):
        one, two = client.segments.create_many(
            [
                {"text": "A town", "metadata": {"page": 1}, "ttl": "1h", "priority": 7},
                {"text": "B town", "external_id": "b"},
            ]
        )
        assert one.expires_at - one.created_at == 3600
        assert one.retention.priority == 7
        assert [s.id for s in client.segments.list(metadata={"page": 1}).data] == [one.id]
        assert client.segments.update(one, ttl="never").expires_at is None
        assert client.segments.pin(one, ttl=60).pinned
        assert not client.segments.unpin(one).pinned
        assert client.segments.retrieve(one).title is None
        job = client.segments.warm.create([one, two], priority="background")
        assert job.wait(timeout_s=10).priority == "background"
        told = client.segments.delete_many(external_ids=["b", "nobody"])
        assert [(s.external_id, s.deleted) for s in told] == [("b", True), ("nobody", False)]
        assert [s.deleted for s in client.segments.delete_many(metadata={"page": 1})] == [True]
        with pytest.raises(RequestError, match="one of"):
            client.segments.delete_many()

    def test_a_list_goes_on_by_itself(self, client, url):
        made = [one.id for one in client.segments.create_many(f"town {n}" for n in range(7))]
        seen = []
        for segment in client.segments.list(limit=2):
            seen.append(segment.id)
            client.segments.delete(segment)  # what was seen may go
        assert seen == made
        client.segments.create_many(f"town {n}" for n in range(5))

        async def all_of_them() -> tuple[list[str], list[str]]:
            async with AsyncHypic(url) as other:
                at_once = [one.id async for one in other.segments.list(limit=2)]
                page = await other.segments.list(limit=2)
                assert (len(page.data), page.has_more) == (2, True)
                return at_once, [one.id async for one in page]

        at_once, by_page = asyncio.run(all_of_them())
        assert at_once == by_page == made[:5]
        page = client.segments.list(limit=4, after=made[0])
        assert (page.has_more, page.last_id, page.next_page()) == (False, made[4], None)
        assert list(client.segments.list(after=made[4])) == []

    def test_create_many_in_order_and_in_any_number(self, client):
        texts = [f"town {number}" for number in range(600)]
        made = client.segments.create_many(text for text in texts)
        assert [one.id for one in made] == [segment_id(text) for text in texts]
        assert client.segments.create_many([]) == ()
        assert [one.deleted for one in client.segments.delete_many(made[:3])] == [True] * 3

    def test_the_first_that_can_not_be_registered_is_raised(self, client):
        items = [{"text": "A", "external_id": "x"}, {"text": "B", "external_id": "x"}, "C"]
        with pytest.raises(RequestError, match="external id"):
            client.segments.create_many(items)
        assert client.segments.lookup([segment_id("C")])[segment_id("C")].state == "registered"

    def test_warming(self, client):
        made = client.segments.create_many(["A town", "B town"])
        seen, threads = [], set()

        def note(job):
            seen.append(job)
            threads.add(threading.current_thread())

        job = client.segments.warm.create(made)
        assert job.wait(timeout_s=10, on_progress=note).counts.done == 2
        assert seen[-1].status == job.status == "succeeded"
        assert threads == {threading.current_thread()}
        assert list(client.segments.warm.retrieve(job.id).events())[-1].status == "succeeded"
        assert [one.id for one in client.segments.warm.list()] == [job.id]
        made = client.segments.create("C town", warm="wait")
        assert client.segments.lookup([made])[made.id].state == "warm"
        with pytest.raises(JobNotFound):
            client.segments.warm.retrieve("warm/../x")

    def test_a_wait_has_a_deadline_and_the_job_can_be_cancelled(self, client, worker):
        worker.gate.clear()
        job = client.segments.warm.create(client.segments.create_many(["A town", "B town"]))
        with pytest.raises(DeadlineExceeded):
            job.wait(timeout_s=0.05)
        assert job.snapshot().status == "running"
        job.cancel()
        assert job.wait(timeout_s=10).status == "cancelled"


class TestChat:
    def test_whole_over_documents(self, client, worker):
        made = client.segments.create("Norwick lies on the Ash.", warm="wait")
        reply = client.chat.completions.create(messages=ASK, documents=[made, "Ada lives there."])
        assert reply.choices[0].message.content == SAID
        assert [one.status for one in reply.cache.segments] == ["hit", "cold"]
        assert reply.request_id == worker.last.request_id

    def test_the_server_finds_registered_texts_in_plain_ones(self, client):
        text = "Norwick lies on the river Ash, and the river is slow. " * 8
        made = client.segments.create(text, warm="wait")
        asked = [{"role": "user", "content": f"Read: {text} Where?"}]
        plain = client.chat.completions.create(messages=asked)
        found = client.chat.completions.create(messages=asked, hypic={"auto_segment": "exact"})
        assert plain.cache.segments == ()
        [use] = found.cache.segments
        assert (use.segment_id, use.status, use.part) == (made.id, "hit", (0, 0))
        with pytest.raises(UnsupportedOption):
            client.chat.completions.create(messages=asked, hypic={"auto_segment": "fuzzy"})

    def test_streams_and_the_whole_reply_after_them(self, client):
        chunks = list(client.chat.completions.create(messages=ASK, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAID
        whole = client.chat.completions.create(messages=ASK, logprobs=True)
        with client.chat.completions.stream(messages=ASK, logprobs=True) as stream:
            next(stream)
            final = stream.get_final_completion()
        same = {"id", "created", "hypic"}
        assert final.model_dump(exclude=same) == whole.model_dump(exclude=same)

    def test_plain_prompts(self, client):
        made = client.segments.create("Norwick lies on the Ash.")
        whole = client.completions.create(prompt=[made, " Where? "], logprobs=1)
        assert whole.choices[0].text == SAID
        options = {"prompt": [made, " Where? "], "logprobs": 1}
        with client.completions.create(stream=True, **options) as stream:
            final = stream.get_final_completion()
        assert final.choices == whole.choices

    def test_leaving_a_stream_cancels_it(self, client, worker):
        worker.pause_s = 0.02
        worker.reply = [65] * 300
        with client.chat.completions.stream(messages=ASK, max_tokens=300) as stream:
            next(stream)
        until(lambda: worker.cancelled == [worker.last.request_id])
        assert list(stream) == []

    def test_errors_have_their_classes(self, client, worker):
        with pytest.raises(UnknownModel):
            client.chat.completions.create(messages=ASK, model="other")
        with pytest.raises(SegmentsMissing) as caught:
            client.chat.completions.create(messages=ASK, documents=[{"segment_id": UNKNOWN}])
        assert caught.value.details["segment_ids"] == [UNKNOWN]
        worker.failure = WorkerLost("gone")
        with client.chat.completions.stream(messages=ASK) as stream, pytest.raises(WorkerLost):
            list(stream)
        with pytest.raises(UnknownModel), client.chat.completions.stream(messages=ASK, model="o"):
            pass

    def test_the_other_calls(self, client):
        assert client.models.list().data[0].id == "tiny"
        assert client.models.retrieve("tiny").hypic.chat
        with pytest.raises(UnknownModel):
            client.models.retrieve("other")
        told = client.prompts.explain(messages=ASK, documents=["A town"])
        assert next(one.code for one in told.warnings) == "below_min_tokens"
        assert (
            client.tokenize(messages=ASK).count
            == client.chat.completions.create(messages=ASK, max_tokens=0).usage.prompt_tokens
        )
        assert client.tokenize(prompt="a town").count == 2
        assert client.prompts.explain(prompt="a town").prompt_tokens == 2
        for given in ({}, {"messages": ASK, "prompt": "x"}):
            with pytest.raises(TypeError, match="either"):
                client.tokenize(**given)
        assert client.cache.stats().num_evicted == 7
        assert client.is_ready()


class TestTrouble:
    def test_refusals_for_lack_of_room_are_tried_again(self, url, worker):
        worker.refuses = QueueFull("full")
        with Hypic(url, max_retries=2) as client:
            later = threading.Timer(0.5, lambda: setattr(worker, "refuses", None))
            later.start()
            assert client.chat.completions.create(messages=ASK).choices[0].message.content == SAID
            later.join()

    def test_but_not_for_ever_and_not_in_vain(self, url, worker):
        worker.refuses = PoolExhausted("never", retryable=False)
        with Hypic(url) as client, pytest.raises(PoolExhausted):
            client.chat.completions.create(messages=ASK)
        assert worker.num_refused == 1

    def test_nobody_there(self):
        with Hypic("http://127.0.0.1:9", max_retries=0) as client:
            with pytest.raises(ConnectionFailed) as caught:
                client.models.list()
            assert caught.value.details["sent"] is False
            with pytest.raises(ConnectionFailed), client.chat.completions.stream(messages=ASK):
                pass

    def test_no_reply_in_time(self, client, worker):
        worker.pause_s = 0.3
        with pytest.raises(RequestTimeout):
            client.chat.completions.create(messages=ASK, timeout_s=0.1)
        until(lambda: worker.cancelled)
        with pytest.raises(RequestTimeout):
            client.chat.completions.create(messages=ASK, stream=True, timeout_s=0.1)

    @pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), "5", True])
    def test_a_time_that_is_none_is_refused(self, client, url, timeout_s):
        with pytest.raises(ConfigError, match="timeout_s"):
            client.with_options(timeout_s=timeout_s)
        with pytest.raises(ConfigError, match="timeout_s"):
            Hypic(url, timeout_s=timeout_s)
        with pytest.raises(ConfigError, match="timeout_s"):
            client.chat.completions.create(messages=ASK, timeout_s=timeout_s)

    def test_options_for_one_call(self, client, worker):
        """The same connections and loop, other limits; the client itself keeps its own."""
        worker.pause_s = 0.3
        hasty = client.with_options(timeout_s=0.1)
        with pytest.raises(RequestTimeout):
            hasty.chat.completions.create(messages=ASK)
        until(lambda: worker.cancelled)
        worker.pause_s = 0.0
        assert client.chat.completions.create(messages=ASK).choices[0].message.content == SAID
        worker.refuses = QueueFull("full")
        with pytest.raises(QueueFull):
            client.chat.completions.create(messages=ASK)
        assert worker.num_refused == 1
        with pytest.raises(QueueFull):
            hasty.with_options(max_retries=2, timeout_s=9.0).chat.completions.create(messages=ASK)
        assert worker.num_refused == 4

    def test_options_on_a_loop(self, url):
        async def run() -> None:
            async with AsyncHypic(url) as client:
                assert (await client.with_options(max_retries=0).models.list()).data
                assert (await client.models.list()).data

        asyncio.run(run())
        gc.collect()  # sessions are shared: an open one would warn now

    def test_keys(self, worker, monkeypatch):
        with serve_fake(worker, tenants=Tenants({"key-of-red-0123456789": "red"})) as url:
            with Hypic(url) as client, pytest.raises(NotAuthenticated):
                client.models.list()
            monkeypatch.setenv("HYPIC_API_KEY", "key-of-red-0123456789")
            monkeypatch.setenv("HYPIC_BASE_URL", f"{url}/v1/")
            with Hypic() as client:
                assert client.models.list().data

    def test_a_client_that_nobody_closed_ends_with_its_last_user(self, url):
        def threads() -> list[threading.Thread]:
            return [one for one in threading.enumerate() if one.name == "hypic-client"]

        before = len(threads())
        for _ in range(5):
            other = Hypic(url).with_options(timeout_s=5.0)
            assert other.models.list().data
        assert len(threads()) > before
        del other
        gc.collect()
        until(lambda: len(threads()) == before)

    def test_a_closed_client_says_so(self, url):
        client = Hypic(url)
        client.models.list()
        client.close()
        client.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            client.models.list()


class TestLoops:
    def test_one_client_in_repeated_runs_leaves_nothing_open(self, url):
        client = AsyncHypic(url)

        async def ask() -> str:
            reply = await client.chat.completions.create(messages=ASK)
            return reply.choices[0].message.content

        assert [asyncio.run(ask()) for _ in range(3)] == [SAID] * 3
        gc.collect()  # an open session would warn now, and warnings are errors

    def test_two_loops_at_once(self, url):
        client = AsyncHypic(url)
        said = []

        async def ask() -> None:
            reply = await client.chat.completions.create(messages=ASK)
            said.append(reply.choices[0].message.content)

        threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert said == [SAID] * 3

    def test_cancelling_a_task_cancels_the_request(self, url, worker):
        worker.pause_s, worker.reply = 0.02, [65] * 300

        async def run() -> None:
            async with AsyncHypic(url) as client:
                asking = asyncio.create_task(
                    client.chat.completions.create(messages=ASK, max_tokens=300)
                )
                while not worker.messages:
                    await asyncio.sleep(0.01)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking

        asyncio.run(run())
        until(lambda: worker.cancelled)

    def test_streams_and_jobs_on_a_loop(self, url):
        async def run() -> None:
            async with AsyncHypic(url) as client:
                made = await client.segments.create_many(["A town", "B town"])
                job = await client.segments.warm.create(made)
                assert (await job.wait()).status == "succeeded"
                async with client.chat.completions.stream(messages=ASK, documents=made) as stream:
                    said = [chunk.choices[0].delta.content or "" async for chunk in stream]
                    final = await stream.get_final_completion()
                assert "".join(said) == final.choices[0].message.content == SAID
                assert [one.status for one in final.cache.segments] == ["hit", "hit"]

        asyncio.run(run())

    def test_threads_share_a_blocking_client(self, client):
        replies = []
        threads = [
            threading.Thread(
                target=lambda: replies.append(client.chat.completions.create(messages=ASK))
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({reply.id for reply in replies}) == 8
