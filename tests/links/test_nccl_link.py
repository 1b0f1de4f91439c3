"""A link between two GPUs carries bytes whole, or fails in time; two workers of a host use it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
import torch

from hypic_sdk.config import EngineConfig, StoreConfig, keep_nccl_calm
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import TransferFailed
from hypic_sdk.links.link_ends import Packed, copy_stream
from hypic_sdk.links.pair_link import PendingLink
from hypic_sdk.router.costs import CostModel
from hypic_sdk.server.fleet import Fleet
from hypic_sdk.store.entry_bytes import payload_digest, words_digest
from hypic_sdk.transport.control import Question
from hypic_sdk.transport.peer_messages import Carrier
from hypic_sdk.transport.process_settings import ProcessSettings
from tests.links.receiving import SIZES, received, sender
from tests.links.sending_worker import payload_of
from tests.server.test_fleet import START_TIMEOUT_S, document, events_of, ids_of, request, until

pytestmark = pytest.mark.multi_gpu

WAIT_S = 3.0
GPU = torch.device("cuda:0")
NCCL_NAMES = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING",
              "TORCH_NCCL_DUMP_ON_TIMEOUT", "NCCL_NVLS_ENABLE", "NCCL_SOCKET_IFNAME")  # fmt: skip
READER = ProcessSettings(
    str(reader_path()), EngineConfig(device="cuda", store=StoreConfig(budget_bytes=256 << 20))
)
SPREADING = CostModel(prefill_ms_per_token=100, transfer_ms=0.1, transfer_ms_per_token=0)


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NCCL_NAMES:
        monkeypatch.setenv(name, os.environ.get(name, ""))  # so that it is put back
        monkeypatch.delenv(name)
    keep_nccl_calm(is_loopback=True)


def pending_link(epoch: int = 1) -> PendingLink:
    return PendingLink("127.0.0.1", epoch, timeout_s=30, carrier=Carrier.NCCL)


def test_payloads_come_whole_and_in_order() -> None:
    sizes = (*SIZES, 300_000_001)
    pending = pending_link()
    with sender(pending, sizes, gpu=1), copy_stream(GPU):
        link = pending.accept()
        for number, size in enumerate(sizes):
            assert received(link, number, size, timeout_s=30, device=GPU)
        link.close()


@pytest.mark.parametrize("fault", ["kill", "stop", "leave"])
def test_a_sender_that_fails_is_a_typed_error_in_time_and_the_next_epoch_works(fault: str) -> None:
    pending = pending_link()
    with sender(pending, fault=fault, gpu=1), copy_stream(GPU):
        link = pending.accept()
        assert received(link, 0, SIZES[0], timeout_s=30, device=GPU)
        started_s = time.monotonic()
        with pytest.raises(TransferFailed):
            received(link, 1, SIZES[1], timeout_s=WAIT_S, device=GPU)
        assert time.monotonic() - started_s < WAIT_S + 2
        assert not link.is_open
    again = pending_link(2)
    with sender(again, gpu=1), copy_stream(GPU):
        link = again.accept()
        for number, size in enumerate(SIZES):
            assert received(link, number, size, timeout_s=30, device=GPU)
        link.close()


def test_a_digest_of_a_payload_is_the_same_on_any_gpu() -> None:
    payload = payload_of(3, 12_345_677)
    expected = words_digest(payload)
    for index in range(torch.cuda.device_count()):
        assert payload_digest(payload.to(f"cuda:{index}")) == expected


def test_a_copy_is_sent_as_it_was_packed_however_late_it_is_written() -> None:
    source = payload_of(4, 1 << 26).to(GPU)
    for _ in range(5):
        torch.cuda._sleep(200_000_000)  # the engine's stream is busy
        packed = Packed.of(source.clone(), 0.0)
        with copy_stream(GPU):
            assert payload_digest(packed.wait()) == words_digest(payload_of(4, 1 << 26))
        source.add_(0)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(READER, 2, costs=SPREADING, hung_after_s=30.0) as one:
        one.wait_ready(START_TIMEOUT_S)
        yield one


@pytest.fixture(scope="module")
def single() -> Iterator[Fleet]:
    with Fleet(READER, 1) as one:
        one.wait_ready(START_TIMEOUT_S)
        yield one


def num_fetched(fleet: Fleet) -> int:
    return sum(one.num_fetched for one in fleet.link.worker_facts().values())


def test_two_gpus_give_the_tokens_of_one_and_the_same_entries(fleet: Fleet, single: Fleet) -> None:
    events_of(fleet, request("compiles", range(6)))
    for n in range(1, 4):
        message = request(f"two {n}", range(10 * n, 10 * n + 6), max_tokens=16)
        assert ids_of(events_of(fleet, message)) == ids_of(events_of(single, message))
    until(lambda: num_fetched(fleet) > 0)
    parts = tuple(document(n) for n in range(10, 16))
    (alone,) = single.ports().values()
    expected = alone.ask(Question.DIGESTS, parts)
    held = [port.ask(Question.DIGESTS, parts) for port in fleet.ports().values()]
    for digests in held:
        assert all(one in (None, want) for one, want in zip(digests, expected, strict=True))
    assert all(any(digests[i] for digests in held) for i in range(len(parts)))


def test_a_killed_gpu_worker_costs_its_segments_only_and_comes_back(
    fleet: Fleet, single: Fleet
) -> None:
    until(lambda: list(fleet.link.workers().values()) == ["ready", "ready"])
    message = request("killed", range(200, 212), max_tokens=8)
    expected = ids_of(events_of(single, message))
    victim = fleet.process_ids[1]
    assert victim is not None
    events = fleet.link.submit(message)
    os.kill(victim, signal.SIGKILL)
    told = list(events)
    last = told[-1]
    if last.error is None:
        assert ids_of(told) == expected
    else:
        assert last.error["code"] in ("worker_lost", "worker_error")
    until(lambda: list(fleet.link.workers().values()) == ["ready", "ready"], 120)
    before = num_fetched(fleet)
    again = request("again", range(300, 312), max_tokens=8)
    assert ids_of(events_of(fleet, again)) == ids_of(events_of(single, again))
    until(lambda: num_fetched(fleet) > before)
    assert fleet.link.usage()["num_leases"] == 0
