"""A worker among several: its courier beside its engine, and which device is its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from hypic_sdk.config import EngineConfig
from hypic_sdk.engine.opening import usable_device
from hypic_sdk.engine.peer_desk import PeerDesk, PeerFetcher
from hypic_sdk.engine.worker import LocalWorker
from hypic_sdk.links.courier import Courier
from hypic_sdk.store.entry_bytes import payload_digest
from hypic_sdk.transport.peer_channel import PeerChannel
from hypic_sdk.transport.peer_key import check_private
from hypic_sdk.transport.process_settings import PeerSettings


@contextmanager
def joined(worker: LocalWorker, peers: PeerSettings) -> Iterator[Courier]:
    """Answer to other workers, and follow hints about them, inside the block."""
    check_private(peers.host, may_be_public=peers.may_be_public)
    described = worker.call(lambda engine: engine.describe())
    with (
        PeerChannel(Path(peers.folder), peers.worker) as channel,
        Courier(
            channel,
            peers.worker,
            PeerDesk(worker),
            digest=payload_digest,
            compute_fingerprint=described.settings.compute_fingerprint,
            device=described.settings.device,
            host=peers.host,
        ) as courier,
    ):
        fetcher = PeerFetcher(courier, worker)
        worker.call(lambda engine: engine.connect(fetcher))
        yield courier


def own_share(config: EngineConfig, peers: PeerSettings) -> EngineConfig:
    """The settings of one worker of several: a GPU of its own, or its share of the cores.

    Workers of a CPU have as many threads each as the cores come to: sums of products may go by that
    number, so it is the same for all of them.
    """
    device = usable_device(config.device)
    if device.type == "cuda" and device.index is None:
        index = peers.index % torch.cuda.device_count()
        return replace(config, device=f"cuda:{index}")
    if device.type == "cpu":
        share = max(1, (os.cpu_count() or 1) // peers.num_workers)
        torch.set_num_threads(min(torch.get_num_threads(), share))
    return config
