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
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory

import msgspec

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import WorkerError
from hypic_sdk.server.app import create_app
from hypic_sdk.server.launch import LaunchSettings, serve
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.server.serving import serving
from hypic_sdk.server.supervisor import EngineSupervisor
from hypic_sdk.service import ModelFacts
from hypic_sdk.transport.messages import SamplingParams
from hypic_sdk.transport.process_settings import ProcessSettings

START_TIMEOUT_S = 600.0


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
            process.wait()


async def _serve_shape(shape: str, config: EngineConfig) -> None:
    """Serve random weights until a signal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = EngineSupervisor(
        ProcessSettings(shape, config), module="hypic_sdk.bench.shape_process"
    )
    engine.start()
    try:
        ready = await asyncio.to_thread(engine.wait_ready, START_TIMEOUT_S)
        facts = ModelFacts(config.reuse, ready.conv_width, ready.max_context_tokens)
        # the tokenizer's ids are all below the vocabulary's size; nothing else is asked of them
        factory = ServiceFactory.from_folder(
            reader_path(), engine.link, model_name=shape, facts=facts, sampling=SamplingParams()
        )
        async with serving(create_app(factory, engine.link)) as url:
            _say(url)
            await stop.wait()
    finally:
        await asyncio.to_thread(engine.stop)


def _say(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


def main(words: list[str]) -> int:
    """Serve what the settings' file says."""
    server = msgspec.json.decode(Path(words[0]).read_bytes(), type=ReplayServer)
    if server.shape is not None:
        asyncio.run(_serve_shape(server.shape, server.config))
        return 0
    folder = Path(server.model_folder) if server.model_folder is not None else reader_path()
    settings = LaunchSettings(
        folder, folder.name, port=0, log_level="WARNING", engine=server.config
    )
    asyncio.run(serve(settings, _say))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
