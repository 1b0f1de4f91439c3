"""A worker among several: its courier beside its engine, and which device is its own."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hypic_sdk.config import EngineConfig, keep_nccl_calm, see_one_gpu
from hypic_sdk.engine.opening import usable_device
from hypic_sdk.engine.peer_desk import PeerDesk, PeerFetcher
from hypic_sdk.engine.worker import LocalWorker
from hypic_sdk.links.courier import Courier
from hypic_sdk.store.entry_bytes import payload_digest
from hypic_sdk.transport.peer_channel import PeerChannel
from hypic_sdk.transport.peer_key import PeerKey, check_private
from hypic_sdk.transport.peer_messages import Carrier
from hypic_sdk.transport.process_settings import PeerSettings


@contextmanager
def joined(
    worker: LocalWorker, peers: PeerSettings, carrier: Carrier = Carrier.TCP
) -> Iterator[Courier]:
    """Answer to other workers, and follow hints about them, inside the block.

    Args:
        carrier: of what this worker asks others for (`own_share`).
    """
    check_private(peers.host, may_be_public=peers.may_be_public)
    key = PeerKey.from_file(Path(peers.key_file)) if peers.key_file else None
    described = worker.call(lambda engine: engine.describe())
    with (
        PeerChannel(
            Path(peers.folder) if peers.folder else None,
            peers.worker,
            host=peers.host,
            key=key,
            may_be_public=peers.may_be_public,
        ) as channel,
        Courier(
            channel,
            peers.worker,
            PeerDesk(worker),
            digest=payload_digest,
            compute_fingerprint=described.settings.compute_fingerprint,
            device=described.settings.device,
            carrier=carrier,
            host=peers.host,
        ) as courier,
    ):
        fetcher = PeerFetcher(courier, worker)
        worker.call(lambda engine: engine.connect(fetcher))
        yield courier


def own_share(config: EngineConfig, peers: PeerSettings) -> Carrier:
    """Take a GPU, or a share of the cores, as one worker of several; before CUDA is touched.

    Workers of a CPU have as many threads each as the cores come to: sums of products may go by that
    number, so it is the same for all of them.

    Returns:
        what carries entries here: NCCL refuses two that share a GPU.
    """
    num_gpus = torch.cuda.device_count()  # asks the driver's library, and makes no context
    may_choose = config.device in ("auto", "cuda")
    if may_choose and num_gpus:
        see_one_gpu(peers.index, num_gpus)
        keep_nccl_calm(is_loopback=ipaddress.ip_address(peers.host).is_loopback)
    if usable_device(config.device).type == "cpu":
        share = max(1, (os.cpu_count() or 1) // peers.num_workers)
        torch.set_num_threads(min(torch.get_num_threads(), share))
        return Carrier.TCP
    return Carrier.NCCL if may_choose and num_gpus >= peers.num_workers else Carrier.TCP
