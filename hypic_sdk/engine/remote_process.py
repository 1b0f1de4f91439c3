"""The engine process of a worker whose router is on another host.

Run as `python -m hypic_sdk.engine.remote_process FOLDER`; FOLDER holds `settings.json`.  It joins,
is told its id and how all workers are set up, loads its model and serves.  It ends when its parent
is gone, when the router is silent, or when the router does not know it any more; whoever started it
starts it again, and it comes back empty, under another id.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from hypic_sdk.engine.process import (
    Load,
    end_at_once,
    kept,
    load_checkpoint,
    log_to_stderr,
    run,
)
from hypic_sdk.errors import HypicError, from_payload
from hypic_sdk.transport.control import Join, Leave, Refused, Welcome
from hypic_sdk.transport.fleet_channel import WorkerEnd
from hypic_sdk.transport.peer_key import PeerKey
from hypic_sdk.transport.process_settings import (
    HOPELESS,
    SETTINGS_FILE,
    PeerSettings,
    ProcessSettings,
    RemoteSettings,
)
from hypic_sdk.version import __version__

logger = logging.getLogger(__name__)

JOIN_EVERY_S = 1.0
FIRST_WARNING_S, WARN_EVERY_S = 10.0, 60.0  # of a router that does not answer
ROUTER_SILENT_S = 15.0  # signs of life come about once a second
LAST_WORD_S = 0.2  # what is queued is dropped by closing; let it go out


def main(load: Load = load_checkpoint) -> None:
    """Join, serve, end."""
    folder = Path(sys.argv[1])
    settings = msgspec.json.decode((folder / SETTINGS_FILE).read_bytes(), type=RemoteSettings)
    log_to_stderr(settings.log_level)
    parent, is_stopping = os.getppid(), threading.Event()
    # a terminal's Ctrl-C goes to the whole group; whoever started this one ends it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: is_stopping.set())
    with WorkerEnd(settings.router, PeerKey.from_file(Path(settings.key_file))) as channel:
        try:
            status = serve_router(
                settings,
                channel,
                kept(load),
                lambda: os.getppid() == parent and not is_stopping.is_set(),
            )
        except HypicError as error:
            logger.error("the router refuses worker %s: %s", settings.place, error)
            status = 0 if error.retryable else HOPELESS
    end_at_once(status)


def serve_router(
    settings: RemoteSettings, channel: WorkerEnd, load: Load, is_wanted: Callable[[], bool]
) -> int:
    """Join, and serve while wanted and while the router is heard; the exit status.

    Raises:
        HypicError: the router refuses this worker, or does so later.
    """
    welcome = join(channel, settings, is_wanted)
    if welcome is None:
        return 0
    is_well = run(
        process_settings(settings, welcome),
        channel,
        load,
        lambda: is_wanted() and time.monotonic() - channel.heard_s < ROUTER_SILENT_S,
    )
    channel.send(Leave(welcome.worker))
    channel.receive(LAST_WORD_S)
    return 0 if is_well else HOPELESS


def join(
    channel: WorkerEnd, settings: RemoteSettings, is_wanted: Callable[[], bool]
) -> Welcome | None:
    """Ask to be let in until there is an answer; none if this worker is not wanted any more.

    Who has another key is not answered, so that silence is all there is to tell of.

    Raises:
        HypicError: it is refused.
    """
    started_s = time.monotonic()
    warn_after_s = FIRST_WARNING_S
    while is_wanted():
        silent_s = time.monotonic() - started_s
        if silent_s >= warn_after_s:
            warn_after_s = silent_s + WARN_EVERY_S
            warn_of_silence(settings, silent_s)
        channel.send(Join(settings.place, __version__))
        answer = channel.receive(JOIN_EVERY_S)
        if isinstance(answer, Welcome):
            return answer
        if isinstance(answer, Refused):
            raise from_payload(answer.error)
    return None


def warn_of_silence(settings: RemoteSettings, silent_s: float) -> None:
    """Name the address, and what most often is the reason."""
    logger.warning(
        "worker %s: no answer from the router at %s for %.0f s; it is asked on. Either nobody can "
        "be reached there (is that its --gate, does it run, does a firewall let this host in?), or "
        "its own workers still load their model, or its key is another: %s must be the same file "
        "as its --worker-key, who has another is not answered",
        settings.place,
        settings.router,
        silent_s,
        settings.key_file,
    )


def process_settings(settings: RemoteSettings, welcome: Welcome) -> ProcessSettings:
    """As the router has it, but for what is this host's own."""
    config = welcome.config
    if settings.device is not None:
        config = replace(config, device=settings.device)
    if settings.budget_bytes is not None:
        config = replace(config, store=replace(config.store, budget_bytes=settings.budget_bytes))
    peers = PeerSettings(
        welcome.worker, "", settings.index, settings.num_workers, settings.host,
        settings.may_be_public, settings.key_file,
    )  # fmt: skip
    return ProcessSettings(settings.model_folder, config, settings.log_level, peers=peers)


if __name__ == "__main__":
    main()
