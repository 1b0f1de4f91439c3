"""Warm jobs: progress that only grows, waiting, cancelling, failing."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.errors import DeadlineExceeded, PoolExhausted, SegmentNotFound, WorkerLost
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentId, segment_id
from hypic_sdk.service import WarmJob, WarmProgress, warm_job
from hypic_sdk.service.warm_job import MAX_LOSSES
from hypic_sdk.transport.events import failed
from hypic_sdk.transport.messages import SegmentStatus, WarmEvent, WarmRequest
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.segments import RegisterRequest, SegmentIds
from tests.service.fake_worker import FakeWorker
from tests.service.services import service


def registered(over, texts):
    request = parse(RegisterRequest, {"segments": [{"text": text} for text in texts]})
    return [segment.id for segment in over.segments.register(request)]


def warm(over, ids):
    return over.segments.warm(parse(SegmentIds, {"segment_ids": ids}))


def test_a_job_warms_its_segments_and_counts_them():
    worker = FakeWorker()
    over = service(worker)
    ids = registered(over, ["the first town", "a second town", "a third"])
    warm(over, ids[:1]).wait(timeout_s=10)
    seen = []
    job = warm(over, ids).wait(timeout_s=10, on_progress=seen.append)
    assert (job.status, job.object, job.created_at) == ("succeeded", "warm_job", 1_800_000_000)
    assert job.counts.model_dump() == {
        "total": 3, "done": 2, "already_warm": 1, "not_kept": 0, "failed": 0, "cancelled": 0,
    }  # fmt: skip
    assert job.tokens.total == job.tokens.computed + job.tokens.reused
    assert seen[-1] == job
    done = [one.counts.done + one.counts.already_warm for one in seen]
    assert done == sorted(done)


def test_a_segment_named_twice_is_warmed_once():
    over = service(FakeWorker())
    [id_] = registered(over, ["a town"])
    assert warm(over, [id_, id_]).wait(timeout_s=10).counts.total == 1


def test_an_unknown_segment_is_told_before_anything_is_done():
    worker = FakeWorker()
    over = service(worker)
    unknown = "seg_" + "a" * 32
    with pytest.raises(SegmentNotFound, match=unknown):
        warm(over, [*registered(over, ["a town"]), unknown])
    assert worker.messages == []


def test_waiting_has_a_deadline_and_the_job_goes_on():
    worker = FakeWorker()
    worker.gate.clear()
    over = service(worker)
    job = warm(over, registered(over, ["a town"]))
    with pytest.raises(DeadlineExceeded):
        job.wait(timeout_s=0.02)
    assert job.status == "running"
    worker.gate.set()
    assert job.wait(timeout_s=10).status == "succeeded"


class LosingWorker:
    """A worker that is lost under each of the first jobs, and away for a while behind each."""

    def __init__(self, losses: int, away: int) -> None:
        self.plan = (["lost"] + ["away"] * away) * losses + ["there"]
        self.num_asked = 0
        self.cancelled: list[str] = []

    def submit(self, message, on_event):
        word = self.plan[min(self.num_asked, len(self.plan) - 1)]
        self.num_asked += 1
        ids = [part.segment_id for part in message.segments]
        lost = failed(message.request_id, WorkerLost("gone"), is_warm=True)
        told = {
            "away": [lost],
            "lost": [warmed(message, ids[0]), lost],
            "there": [*(warmed(message, one) for one in ids), warmed(message, None)],
        }[word]
        for event in told:
            on_event(event)
        return iter(())

    def cancel(self, request_id):
        self.cancelled.append(request_id)


def warmed(message, segment_id):
    if segment_id is None:
        return WarmEvent(message.request_id, done=True)
    return WarmEvent(message.request_id, segment_id, SegmentStatus.COLD, 3)


def job_over(worker, **fields):
    parts = [PromptPart(Role.INNER, (1, 2, number), segment_id(str(number))) for number in range(3)]
    return WarmJob(WarmRequest("job", tuple(parts)), worker, created_at=7, **fields)


class TestAWorkerIsLost:
    @pytest.mark.parametrize("losses", range(MAX_LOSSES + 2))
    def test_the_job_begins_anew_with_the_next(self, losses, monkeypatch):
        monkeypatch.setattr(warm_job, "LOOK_EVERY_S", 0.01)
        worker = LosingWorker(losses, away=2)
        ended = job_over(worker).wait(timeout_s=10)
        if losses > MAX_LOSSES:
            assert (ended.status, ended.errors[-1].code) == ("failed", "worker_lost")
            return
        assert (ended.status, ended.created_at, ended.errors) == ("succeeded", 7, ())
        assert (ended.counts.done, ended.counts.total) == (3, 3)

    def test_none_comes(self, monkeypatch):
        monkeypatch.setattr(warm_job, "LOOK_EVERY_S", 0.01)
        worker = LosingWorker(1, away=10**6)
        ended = job_over(worker, next_worker_s=0.2).wait(timeout_s=10)
        assert (ended.status, ended.errors[-1].code) == ("failed", "worker_lost")

    def test_a_job_that_waits_for_one_can_be_cancelled(self):
        worker = LosingWorker(1, away=10**6)
        job = job_over(worker)
        assert job.status == "running"
        job.cancel()
        assert job.wait(timeout_s=1).status == "cancelled"
        num_asked = worker.num_asked
        time.sleep(2 * warm_job.LOOK_EVERY_S)
        assert worker.num_asked == num_asked


def test_a_cancelled_job_says_what_it_did_not_reach():
    worker = FakeWorker()
    worker.gate.clear()
    over = service(worker)
    job = warm(over, registered(over, ["a town", "b town"]))
    job.cancel()
    ended = job.wait(timeout_s=10)
    assert ended.status == "cancelled"
    assert ended.counts.cancelled == 2
    assert worker.cancelled == [job.id]


def test_a_segment_that_fails_is_named_and_the_job_is_failed():
    worker = FakeWorker()
    worker.failure = PoolExhausted("no room")
    over = service(worker)
    [id_] = registered(over, ["a town"])
    ended = warm(over, [id_]).wait(timeout_s=10)
    assert ended.status == "failed"
    assert ended.counts.failed == 1
    [error] = ended.errors
    assert (error.segment_id, error.code, error.message) == (id_, "pool_exhausted", "no room")


def test_events_come_to_each_who_asks_from_the_first():
    over = service(FakeWorker())
    ids = registered(over, ["a town", "b town"])
    job = warm(over, ids)
    for _ in range(2):
        assert [event.segment_id for event in job.events()] == [*ids, None]
    assert job.status == "succeeded"


def test_a_worker_that_is_lost_fails_the_job():
    progress = WarmProgress("w", num_segments=2, num_tokens=9, created_at=0)
    progress.feed(WarmEvent("w", error=WorkerLost("gone").to_payload(), done=True))
    ended = progress.snapshot()
    assert (ended.status, ended.errors[0].code) == ("failed", "worker_lost")


@given(
    st.lists(st.sampled_from([SegmentStatus.HIT, SegmentStatus.COLD, SegmentStatus.LIVE, None])),
    st.sampled_from([None, "request_cancelled"]),
)
def test_counts_add_up_at_the_end_of_any_job(statuses, ends_with):
    total = len(statuses) + 2
    progress = WarmProgress("w", num_segments=total, num_tokens=5 * total, created_at=0)
    for number, status in enumerate(statuses):
        error = {"code": "x", "message": "y"} if status is None else None
        progress.feed(WarmEvent("w", SegmentId(f"seg_{number}"), status, 5, 1.0, error))
        assert not progress.is_over
    error = {"code": ends_with} if ends_with else None
    progress.feed(WarmEvent("w", error=error, done=True))
    job = progress.snapshot()
    counts = job.counts
    parts = counts.done + counts.already_warm + counts.not_kept + counts.failed + counts.cancelled
    assert parts == (total if ends_with else len(statuses))
    assert job.tokens.computed == 5 * counts.done
    assert job.tokens.reused == 5 * counts.already_warm
    assert job.cold_ms == sum(status is not None for status in statuses)
    expected = "cancelled" if ends_with else "failed" if counts.failed else "succeeded"
    assert job.status == expected


def test_the_time_left_follows_from_the_tokens_that_were_computed():
    now_s = 100.0
    progress = WarmProgress("w", num_segments=4, num_tokens=40, created_at=0, clock=lambda: now_s)
    assert progress.snapshot().eta_s is None
    now_s = 102.0
    progress.feed(WarmEvent("w", SegmentId("a"), SegmentStatus.HIT, 10))
    assert progress.snapshot().eta_s is None  # what was there says nothing of the rest
    progress.feed(WarmEvent("w", SegmentId("b"), SegmentStatus.COLD, 10))
    assert progress.snapshot().eta_s == 4.0
    progress.feed(WarmEvent("w", done=True))
    assert progress.snapshot().eta_s is None
