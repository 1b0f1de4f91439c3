"""Scattered over workers, a request has the tokens, the entries and the report of one worker."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hypic_sdk.config import SeamRule
from hypic_sdk.engine.fetching import FETCH_TIMEOUT_S
from hypic_sdk.engine.plan import gap_of
from hypic_sdk.errors import NumericsError, TransferFailed, WorkerLost
from hypic_sdk.prompt.segment import SegmentedPrompt
from hypic_sdk.router.assignment import WorkerId, in_turn, longest_first
from hypic_sdk.router.costs import CostModel
from hypic_sdk.transport.messages import FinishReason, SegmentStatus, WarmRequest
from tests.cluster.workers import Cluster, alone, cluster
from tests.engine.harness import ALL_FAMILIES, report_of, token_ids
from tests.engine.prompts import inner, prompt_of, tokens

DOCUMENTS = [inner(tokens(seed, 20 + 17 * seed)) for seed in range(7)]


def prompt(order: tuple[int, ...]) -> SegmentedPrompt:
    pieces = [piece for n in order for piece in (DOCUMENTS[n], tokens(50 + n, 2))]
    return prompt_of(tokens(99, 5), *pieces, tokens(98, 9))


FIRST, SECOND = prompt(tuple(range(7))), prompt((3, 6, 0, 2, 2))


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_equal_tokens_on_one_two_and_four_workers(family: str, tmp_path: Path) -> None:
    expected = [alone(one, family, max_tokens=12) for one in (FIRST, SECOND)]
    for count in (1, 2, 4):
        folder = tmp_path / str(count)
        folder.mkdir()
        with cluster(folder, count, family=family) as workers:
            cold, warm = (workers.ask(one, max_tokens=12) for one in (FIRST, SECOND))
            assert [token_ids(cold), token_ids(warm)] == expected
            assert report_of(warm).cold_tokens == 0
            assert all(segment.status is SegmentStatus.HIT for segment in report_of(warm).segments)
            assert workers.num_leases() == 0


@pytest.mark.parametrize("rule", [longest_first, in_turn], ids=lambda rule: rule.__name__)
def test_work_is_spread_and_entries_are_equal_wherever_built(rule, tmp_path: Path) -> None:
    with cluster(tmp_path, 4, assign=rule) as workers:
        plan = workers.router.plan(_request(FIRST))
        assert len(plan.cold) == 4
        report = report_of(workers.ask(FIRST, max_tokens=3))
        held = workers.digests(DOCUMENTS)
        built = {worker: len(ids) for worker, ids in plan.cold.items()}
        for member, digests in zip(workers.members, held, strict=True):
            count = sum(digest is not None for digest in digests)
            assert count == (7 if member.name == plan.combine else built[member.name])
        for copies in zip(*held, strict=True):
            assert len({digest for digest in copies if digest is not None}) == 1
        # what others computed for this request is told, but not as computed here
        own = sum(len(d.token_ids) for d in DOCUMENTS if d.segment_id in plan.cold[plan.combine])
        assert report.cold_tokens == own
        assert [s.status for s in report.segments] == [SegmentStatus.COLD] * 7


def test_a_hit_is_pulled_from_the_worker_that_holds_it(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as workers:
        home, other = workers.members
        list(home.worker.submit(WarmRequest("warm", tuple(DOCUMENTS))))
        message = _request(FIRST, placements_from=home.name)
        events = list(other.worker.submit(message))
        report = report_of(events)
        assert report.cold_tokens == 0
        assert {segment.tier for segment in report.segments} == {"peer"}
        assert workers.digests(DOCUMENTS)[0] == workers.digests(DOCUMENTS)[1]


@pytest.mark.parametrize("differs", ["seams", "namespace", "model"])
def test_an_entry_of_other_settings_is_not_sent(differs: str, tmp_path: Path) -> None:
    """The asker's key is not ours: what we keep of that text is not what it means."""
    one, namespace = DOCUMENTS[3], "n"
    with cluster(tmp_path, 1) as workers:
        (home,) = workers.members
        list(home.worker.submit(WarmRequest("warm", (one,), namespace)))
        settings = home.engine.describe().settings
        width = settings.conv_width
        own = gap_of(one, 0, 0, settings.reuse, width, settings.cache_namespace(namespace))
        reuse = settings.reuse
        if differs == "seams":
            reuse = replace(reuse, seam=SeamRule.parse("12"))
        told = settings.cache_namespace("m" if differs == "namespace" else namespace)
        told += "another model" if differs == "model" else ""
        other = gap_of(one, 0, 0, reuse, width, told)
        assert own is not None
        assert other is not None
        assert home.worker.call(lambda engine: engine.pack(one, own.key, namespace)).numel() > 0
        with pytest.raises(TransferFailed, match="other settings"):
            home.worker.call(lambda engine: engine.pack(one, other.key, namespace))
        with pytest.raises(TransferFailed, match="other settings"):
            home.worker.call(lambda engine: engine.pack(one, own.key, "m"))


@pytest.mark.parametrize("error", [WorkerLost("gone"), NumericsError("x"), TransferFailed("x")])
def test_what_does_not_come_is_made_here(error, tmp_path: Path, monkeypatch) -> None:
    expected = alone(FIRST, max_tokens=6)
    with cluster(tmp_path, 3) as workers:
        for member in workers.members:
            monkeypatch.setattr(
                member.courier._source, "provide", lambda request, give: give(error)
            )
        events = workers.ask(FIRST, max_tokens=6)
        assert token_ids(events) == expected
        assert report_of(events).cold_tokens == sum(len(d.token_ids) for d in DOCUMENTS)
        assert workers.num_leases() == 0


def test_hints_that_name_nobody_cost_a_computation_and_no_answer(tmp_path: Path) -> None:
    expected = alone(FIRST, max_tokens=6)
    with cluster(tmp_path, 1) as workers:
        message = _request(FIRST, placements_from=WorkerId("nobody"), max_tokens=6)
        assert token_ids(list(workers.members[0].worker.submit(message))) == expected


def test_a_cancelled_request_drops_what_it_asked_of_others(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as workers:
        home, other = workers.members
        stuck = threading.Event()
        home.worker.post(lambda engine: stuck.wait(20))
        message = _request(FIRST, placements_from=home.name)
        events = other.worker.submit(message)
        time.sleep(0.2)
        other.worker.cancel(message.request_id)
        last = list(events)[-1]
        assert last.finish_reason is FinishReason.ERROR
        assert other.worker.call(lambda engine: engine.usage().num_filling) == 0
        stuck.set()
        deadline_s = time.monotonic() + 20
        while home.worker.call(lambda engine: engine.has_work) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert workers.num_leases() == 0
        assert token_ids(workers.ask(SECOND, max_tokens=6)) == alone(SECOND, max_tokens=6)


def test_small_requests_stay_on_one_worker(tmp_path: Path) -> None:
    sending_is_dear = CostModel(transfer_ms=1000)
    with cluster(tmp_path, 4, costs=sending_is_dear) as workers:
        assert not workers.router.plan(_request(FIRST)).is_spread


def test_many_requests_at_once(tmp_path: Path) -> None:
    orders = [(0, 1, 2), (2, 1, 3), (6, 5), (4,), (3, 2, 1, 0), (5, 6, 5), (), (1, 1)]
    expected = [alone(prompt(order), max_tokens=5) for order in orders]
    with cluster(tmp_path, 3) as workers:
        streams = [workers.router.submit(_request(prompt(order), max_tokens=5)) for order in orders]
        assert [token_ids(list(stream)) for stream in streams] == expected
        assert workers.num_leases() == 0
        assert_deleted_everywhere(workers)


def test_each_key_is_made_once_by_whoever_it_falls_to(tmp_path: Path) -> None:
    orders = [tuple(range(7)), (6, 5, 4, 3, 2, 1, 0), (1, 3, 5), (0, 2, 4, 6), (3, 1), (2, 6, 0),
              (4, 5), (5, 0, 3)]  # fmt: skip
    expected = [alone(prompt(order), max_tokens=4) for order in orders]
    with cluster(tmp_path, 4) as workers:
        made = workers.count_computed()
        streams = [workers.router.submit(_request(prompt(order), max_tokens=4)) for order in orders]
        assert [token_ids(list(stream)) for stream in streams] == expected
        assert sorted(made) == sorted(d.segment_id for d in DOCUMENTS)


@pytest.mark.parametrize("first", ["warm", "request"])
def test_a_key_that_is_warmed_and_asked_for_at_once_is_made_once(
    first: str, tmp_path: Path
) -> None:
    warms = [(0, 1, 2, 3, 4, 5, 6), (3, 2, 1), (6, 0), (5, 4, 3)]
    orders = [(6, 5, 4, 3, 2, 1, 0), (3, 1)]
    expected = [alone(prompt(order), max_tokens=4) for order in orders]
    with cluster(tmp_path, 4) as workers:
        made = workers.count_computed()
        asked = [_request(prompt(order), max_tokens=4) for order in orders]
        parts = [tuple(DOCUMENTS[n] for n in warm) for warm in warms]
        warmed = [WarmRequest(f"warm {n}", one) for n, one in enumerate(parts)]
        messages = [*warmed, *asked] if first == "warm" else [*asked, *warmed]
        streams = [workers.router.submit(message) for message in messages]
        ends = {m.request_id: list(s) for m, s in zip(messages, streams, strict=True)}
        assert [token_ids(ends[one.request_id]) for one in asked] == expected
        assert sorted(made) == sorted(d.segment_id for d in DOCUMENTS)
        assert workers.num_leases() == 0


@pytest.mark.parametrize("kind", ["request", "warm"])
def test_the_caches_of_idle_workers_fill_evenly(kind: str, tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as workers:
        for number, one in enumerate(DOCUMENTS[:6]):
            if kind == "request":
                workers.ask(prompt((number,)), max_tokens=2)
            else:
                list(workers.router.submit(WarmRequest(f"warm {number}", (one,))))
        held = [sum(map(bool, digests)) for digests in workers.digests(DOCUMENTS[:6])]
        assert held == [2, 2, 2]


def test_two_that_wait_for_one_another_do_not_wait(tmp_path: Path) -> None:
    expected = alone(FIRST, max_tokens=4)
    with cluster(tmp_path, 3) as workers:
        ring = [*workers.members[1:], workers.members[0]]
        started_s = time.monotonic()
        streams = [
            member.worker.submit(_request(FIRST, placements_from=other.name, max_tokens=4))
            for member, other in zip(workers.members, ring, strict=True)
        ]
        assert [token_ids(list(stream)) for stream in streams] == [expected] * 3
        assert time.monotonic() - started_s < FETCH_TIMEOUT_S


def test_workers_tell_the_router_what_they_made_and_lost(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as workers:
        home, other = workers.members
        list(home.worker.submit(WarmRequest("warm", tuple(DOCUMENTS))))
        until(lambda: not workers.router.plan(_request(FIRST)).cold)
        assert workers.router.plan(_request(FIRST)).combine == home.name
        for member in (home, other):  # not through the router
            member.worker.call(lambda engine: engine.delete(DOCUMENTS[:3]))
            member.worker.call(lambda engine: engine.tell_entries())
        plan = workers.router.plan(_request(FIRST))
        assert {i for ids in plan.cold.values() for i in ids} == {
            d.segment_id for d in DOCUMENTS[:3]
        }


def until(what, limit_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline_s, "did not come about in time"
        time.sleep(0.01)


def assert_deleted_everywhere(workers: Cluster) -> None:
    workers.router.delete(DOCUMENTS, "")
    assert not any(any(digests) for digests in workers.digests(DOCUMENTS))


def _request(one: SegmentedPrompt, placements_from: str | None = None, **fields: object):
    from hypic_sdk.transport.messages import Placement
    from tests.engine.harness import request_of

    message = request_of(one, **fields)
    if placements_from is None:
        return message
    hints = tuple(Placement(d.segment_id, placements_from) for d in DOCUMENTS)
    return replace(message, placements=hints)


@pytest.mark.parametrize("background", [False, True])
def test_what_a_request_waits_for_goes_before_what_is_warmed(
    background: bool, tmp_path: Path
) -> None:
    many = tuple(inner(tokens(1000 + n, 150)) for n in range(120))
    with cluster(tmp_path, 2) as workers:
        home, other = workers.members
        made = workers.count_computed()
        warming = home.worker.submit(WarmRequest("warm", many, background=background))
        until(lambda: made)
        asked = _request(FIRST, placements_from=home.name, max_tokens=2)
        assert token_ids(list(other.worker.submit(asked)))
        wanted = {d.segment_id for d in DOCUMENTS}
        assert wanted <= set(made)
        assert len(made) < 60, "what a request waits for came behind most of a warm job"
        warming.cancel()
        list(warming)
