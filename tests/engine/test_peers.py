"""Which share of a machine a worker takes, and what carries its entries there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hypic_sdk.config import EngineConfig
from hypic_sdk.engine import peers
from hypic_sdk.transport.peer_messages import Carrier
from hypic_sdk.transport.process_settings import PeerSettings


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """What `see_one_gpu` was told; the machine's environment and threads stay as they are."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(peers, "see_one_gpu", lambda index, count: told.append((index, count)))
    monkeypatch.setattr(peers, "keep_nccl_calm", lambda is_loopback: None)
    num_threads = torch.get_num_threads()
    yield told
    torch.set_num_threads(num_threads)


def worker(index: int, num_workers: int) -> PeerSettings:
    return PeerSettings(f"w{index}-0", "", index, num_workers)


@pytest.mark.parametrize(
    ("num_gpus", "num_workers", "device", "carrier"),
    [
        (2, 2, "cuda", Carrier.NCCL),
        (4, 2, "auto", Carrier.NCCL),
        (1, 2, "cuda", Carrier.TCP),  # two that share a GPU: NCCL refuses them
        (2, 2, "cuda:1", Carrier.TCP),  # likewise, by order
    ],
)
def test_workers_of_gpus_go_by_nccl_where_each_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
    seen: list[tuple[int, int]],
    num_gpus: int,
    num_workers: int,
    device: str,
    carrier: Carrier,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(peers, "usable_device", lambda name: torch.device("cuda"))
    found = peers.own_share(EngineConfig(device=device), worker(1, num_workers))
    assert found is carrier
    assert seen == ([] if device == "cuda:1" else [(1, num_gpus)])


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_workers_of_a_cpu_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, seen: list[tuple[int, int]], device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(peers, "usable_device", lambda name: torch.device("cpu"))
    torch.set_num_threads(4)
    monkeypatch.setattr(peers.os, "cpu_count", lambda: 6)
    assert peers.own_share(EngineConfig(device=device), worker(0, 3)) is Carrier.TCP
    assert torch.get_num_threads() == 2
    assert seen == []
