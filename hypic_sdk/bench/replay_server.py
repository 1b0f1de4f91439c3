"""The server that `bench replay` asks: `hypic serve`, or the same over random weights of a shape.

Run as `python -m hypic_sdk.bench.replay_server SETTINGS`; its first line is its base URL.
"""

from __future__ import annotations

import asyncio
import signal
import sys
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
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ReplayServer:
    """What is served."""

    model_folder: str | None = None
    shape: str | None = None  # of random weights, instead of a folder; with the reader's tokenizer
    config: EngineConfig = field(default_factory=EngineConfig)


@contextmanager
def running(server: ReplayServer) -> Iterator[str]:
    """A process of its own; gives its base URL.

    Raises:
        WorkerError: it ends before it is ready; its standard error says why.
    """
    with TemporaryDirectory(prefix="hypic-") as folder:
        path = Path(folder) / "server.json"
        path.write_bytes(msgspec.json.encode(server))
        command = [sys.executable, "-m", "hypic_sdk.bench.replay_server", str(path)]
        process = Popen(command, stdout=PIPE, text=True)
        assert process.stdout is not None
        try:
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


def main(words: list[str]) -> int:
    """Serve what the settings' file says."""
    server = msgspec.json.decode(Path(words[0]).read_bytes(), type=ReplayServer)
    folder = Path(server.model_folder) if server.model_folder is not None else reader_path()
    engines = None
    if server.shape is not None:
        engines = EngineSupervisor(
            ProcessSettings(server.shape, server.config), module="hypic_sdk.bench.shape_process"
        )
    settings = LaunchSettings(
        folder,
        server.shape or folder.name,
        port=0,
        load_timeout_s=START_TIMEOUT_S,
        log_level="WARNING",
        engine=server.config,
    )
    asyncio.run(serve(settings, _say, engines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
