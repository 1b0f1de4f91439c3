"""`hypic worker`: engines on this host for a router on another; `hypic worker-key`: their key."""

from __future__ import annotations

import hashlib
import logging
import re
import signal
import socket
import threading
from pathlib import Path
from typing import Annotated

import typer

from hypic_sdk.cli.options import MOST_MIB, ModelOption
from hypic_sdk.cli.serve import host_and_port
from hypic_sdk.config import MIB, launched_place
from hypic_sdk.errors import ConfigError, UnsupportedError

logger = logging.getLogger(__name__)

LOOK_S = 2.0  # for the router, before it is asked again and again
MAX_PLACE = 24  # characters of a host's name in those of its workers

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
    typer.Option("--cache-mib", min=1, max=MOST_MIB, help="Of each; none is as the router has it."),
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
        place or place_of_host(socket.gethostname()),
        find_model(model)[0],
        device=device,
        budget_bytes=None if cache_mib is None else cache_mib * MIB,
        log_level=logging.getLevelName(logging.getLogger().level),
    )
    launched = launched_place()
    indices, count = (range(workers), workers) if launched is None else ([launched[0]], launched[1])
    all_settings = here.all_settings(indices, count)
    check_addresses(router, host)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    keep_running(all_settings, stop)


def place_of_host(name: str) -> str:
    """What names the workers of a host, if nobody says: its name, in the characters of a place.

    Hosts of one deployment differ at the end of long names, and no two may have one place.
    """
    place = re.sub(r"[^A-Za-z0-9]", "_", name)
    if len(place) <= MAX_PLACE:
        return place
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{place[: MAX_PLACE - len(digest) - 1]}_{digest}"


def check_addresses(router: str, host: str) -> None:
    """Find out before any process is started what none of them could work with.

    A router that is not there (yet) is asked for on; that it is not is told.

    Raises:
        ConfigError: not HOST:PORT of a router, or not an address of this machine.
    """
    router_host, router_port = host_and_port(router)
    if "/" in router_host or not router_port:
        raise ConfigError(f"a router's address and port are written 10.0.0.1:7000, got {router!r}")
    try:
        socket.create_server((host, 0)).close()
    except OSError as error:
        raise ConfigError(
            f"workers can not listen at {host} ({error}): --host is an IPv4 address of this machine"
        ) from error
    try:
        socket.create_connection((router_host, router_port), LOOK_S).close()
    except OSError as error:
        logger.warning("no router is heard at %s yet (%s): it is asked on", router, error)


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
