"""`hypic worker`: engines on this host for a router on another; `hypic worker-key`: their key."""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
from pathlib import Path
from typing import Annotated

import typer

from hypic_sdk.cli.options import ModelOption
from hypic_sdk.config import MIB, launched_place
from hypic_sdk.errors import UnsupportedError

RouterOption = Annotated[str, typer.Option("--router", help="HOST:PORT of the router's --gate.")]
SharedKeyOption = Annotated[
    Path, typer.Option("--key", help="The key file that all workers share.")
]
HostOption = Annotated[
    str, typer.Option("--host", help="This machine's address on the workers' own network.")
]
CountOption = Annotated[
    int, typer.Option("--workers", min=1, max=64, help="So many here, a GPU for each.")
]
PlaceOption = Annotated[
    str | None, typer.Option("--place", help="Names them in metrics; none is the host's name.")
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="auto, cpu, cuda; none is as the router has it.")
]
CacheOption = Annotated[
    int | None,
    typer.Option("--cache-mib", min=1, help="Of each; none is as the router has it."),
]


def worker(
    router: RouterOption,
    key: SharedKeyOption,
    host: HostOption,
    model: ModelOption = None,
    workers: CountOption = 1,
    place: PlaceOption = None,
    device: DeviceOption = None,
    cache_mib: CacheOption = None,
) -> None:
    """Engines on this host for a router on another (`hypic serve --gate`).

    Under torchrun each of its processes is one worker, on the GPU of its local rank.
    """
    try:
        from hypic_sdk.offline import find_model
        from hypic_sdk.server.remote_workers import HostOfWorkers, keep_running
    except ImportError as error:
        needed = f"a worker needs: pip install 'hypic-sdk[server]' ({error})"
        raise UnsupportedError(needed) from error
    here = HostOfWorkers(
        router,
        key,
        host,
        place or re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:24],
        find_model(model)[0],
        device=device,
        budget_bytes=None if cache_mib is None else cache_mib * MIB,
        log_level=logging.getLevelName(logging.getLogger().level),
    )
    launched = launched_place()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if launched is None:
        keep_running(here.all_settings(range(workers), workers), stop)
    else:
        keep_running(here.all_settings([launched[0]], launched[1]), stop)


def worker_key(
    file: Annotated[Path, typer.Argument(help="A new file; copy it to every host of workers.")],
) -> None:
    """Draw the key that a router and its workers of other hosts share."""
    try:
        from hypic_sdk.server.remote_workers import write_new_key
    except ImportError as error:
        needed = f"a key needs: pip install 'hypic-sdk[server]' ({error})"
        raise UnsupportedError(needed) from error
    write_new_key(file)
