"""The server that `bench replay` asks: `hypic serve`, or the same over random weights of a shape.

Run as `python -m hypic_sdk.bench.replay_server SETTINGS`; its first line is its base URL.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryDirectory

import msgspec

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import WorkerError
from hypic_sdk.server.launch import LaunchSettings, serve
from hypic_sdk.server.supervisor import EngineSupervisor
from hypic_sdk.transport.process_settings import ProcessSettings

START_TIMEOUT_S = 600.0
POLL_S = 0.5  # how soon a lost parent is noticed
STOP_TIMEOUT_S = 10.0  # nobody waits for an answer by then


@dataclass(frozen=True, slots=True)
class ReplayServer:
    """What is served."""

    model_folder: str | None = None
    shape: str | None = None  # of random weights, instead of a folder; with the reader's tokenizer
    config: EngineConfig = field(default_factory=EngineConfig)
    model_name: str | None = None  # of the folder's model; none: the folder's own

    @property
    def words(self) -> str:
        """The model, and how its cache is split."""
        model = self.shape or self.model_name or self.model_folder or "the packaged reader"
        store = self.config.store
        return (
            f"{model}, cache of {store.budget_bytes / 2**30:.3g} GiB split for "
            f"{store.segments_per_request} segments of {store.expected_segment_tokens} tokens a "
            f"request, pairs in {store.pair}"
        )


class LateServer(Exception):
    """It was not ready in the time that there was."""


@contextmanager
def running(server: ReplayServer, patience_s: float = math.inf) -> Iterator[str]:
    """A process of its own; gives its base URL.

    Raises:
        WorkerError: it ends before it is ready; its standard error says why.
        LateServer: it was not ready after `patience_s`.
    """
    with TemporaryDirectory(prefix="hypic-") as folder:
        path = Path(folder) / "server.json"
        path.write_bytes(msgspec.json.encode(server))
        command = [sys.executable, "-m", "hypic_sdk.bench.replay_server", str(path)]
        process = Popen(command, stdout=PIPE, text=True)
        assert process.stdout is not None
        try:
            wait_s = None if patience_s == math.inf else patience_s
            if not select.select([process.stdout], [], [], wait_s)[0]:
                raise LateServer(f"the server was not ready after {patience_s:.0f} s")
            url = process.stdout.readline().strip()
            if not url:
                raise WorkerError("the server of the bench ended before it was ready")
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.close()
            _end(process)


def _end(process: Popen[str]) -> None:
    """Wait until it has let its requests end; not for ever."""
    try:
        process.wait(STOP_TIMEOUT_S)
    except TimeoutExpired:
        process.kill()
        process.wait()


def _say(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


def _end_with(parent: int) -> None:
    """Stop once the bench is gone, killed perhaps: nobody else would free the device."""
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)


def main(words: list[str]) -> int:
    """Serve what the settings' file says, for as long as who started it is there."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    server = msgspec.json.decode(Path(words[0]).read_bytes(), type=ReplayServer)
    folder = Path(server.model_folder) if server.model_folder is not None else reader_path()
    engines = None
    if server.shape is not None:
        engines = EngineSupervisor(
            ProcessSettings(server.shape, server.config), module="hypic_sdk.bench.shape_process"
        )
    settings = LaunchSettings(
        folder,
        server.shape or server.model_name or folder.name,
        port=0,
        load_timeout_s=START_TIMEOUT_S,
        log_level="WARNING",
        engine=server.config,
    )
    asyncio.run(serve(settings, _say, engines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
