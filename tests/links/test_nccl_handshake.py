"""How the ends of a link of GPUs meet, without any: gloo stands for NCCL, and events are over."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hypic_sdk.errors import TransferFailed
from hypic_sdk.links import nccl_link
from hypic_sdk.links.link_address import PairLink
from hypic_sdk.links.nccl_link import NcclLink
from hypic_sdk.links.pair_link import PendingLink, join
from hypic_sdk.links.tcp_link import join_tcp
from hypic_sdk.transport.peer_messages import Carrier
from tests.links.sending_worker import CPU, payload_of

SIZES = (1, 4096, 1_000_003)


class GlooForNccl:
    """A group of two over memories of the CPU."""

    Options = SimpleNamespace

    def __new__(cls, store: Any, rank: int, size: int, options: SimpleNamespace) -> Any:
        assert options.is_high_priority_stream
        assert size == 2
        gloo = dist.ProcessGroupGloo._Options()
        gloo._timeout = options._timeout
        gloo._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return dist.ProcessGroupGloo(store, rank, size, gloo)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    event = SimpleNamespace(record=lambda stream: None, query=lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    fake = SimpleNamespace(TCPStore=dist.TCPStore, ProcessGroupNCCL=GlooForNccl)
    monkeypatch.setattr(nccl_link, "dist", fake)
    return event


def both_ends() -> tuple[PairLink, PairLink]:
    pending = PendingLink("127.0.0.1", 1, timeout_s=5.0, carrier=Carrier.NCCL)
    sending: list[PairLink] = []
    thread = threading.Thread(target=lambda: sending.append(join(pending.address, timeout_s=5.0)))
    thread.start()
    receiving = pending.accept()
    thread.join()
    return sending[0], receiving


def test_the_ends_meet_and_payloads_come_in_order() -> None:
    sending, receiving = both_ends()
    assert isinstance(sending, NcclLink)
    thread = threading.Thread(
        target=lambda: [sending.send(payload_of(n, s), timeout_s=5) for n, s in enumerate(SIZES)]
    )
    thread.start()
    for number, size in enumerate(SIZES):
        payload = receiving.receive(size, timeout_s=5, device=CPU)
        assert torch.equal(payload, payload_of(number, size))
    thread.join()
    for link in (sending, receiving):
        link.close()
        link.close()
        assert not link.is_open
    with pytest.raises(TransferFailed):
        receiving.receive(1, timeout_s=1, device=CPU)
    with pytest.raises(TransferFailed):
        sending.send(payload_of(0, 1), timeout_s=1)


def test_a_copy_that_is_not_over_in_time_closes_the_link(no_gpu: SimpleNamespace) -> None:
    sending, receiving = both_ends()
    no_gpu.query = lambda: False
    thread = threading.Thread(target=lambda: receiving.receive(10, timeout_s=5, device=CPU))
    no_gpu_is_over = threading.Timer(0.5, lambda: setattr(no_gpu, "query", lambda: True))
    thread.start()
    with pytest.raises(TransferFailed, match="in time"):
        sending.send(payload_of(0, 10), timeout_s=0.2)
    assert not sending.is_open
    no_gpu_is_over.start()
    thread.join()
    receiving.close()


def test_a_sender_that_goes_away_before_the_group_is_there_fails_the_receiver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nccl_link, "MEET_TIMEOUT_S", 1.0)
    pending = PendingLink("127.0.0.1", 1, timeout_s=5.0, carrier=Carrier.NCCL)
    join_tcp(pending.address, 5.0).close()
    with pytest.raises(TransferFailed):
        pending.accept().receive(1, timeout_s=1, device=CPU)
