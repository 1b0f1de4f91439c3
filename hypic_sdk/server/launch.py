"""`hypic serve`: an engine process, the application before it, both ended together."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hypic_sdk.config import EngineConfig
from hypic_sdk.errors import ConfigError, HypicError, WorkerError
from hypic_sdk.server.app import create_app
from hypic_sdk.server.drain import Drain
from hypic_sdk.server.fleet import Fleet
from hypic_sdk.server.segment_file import SegmentFile
from hypic_sdk.server.services import OpenCatalog, ServiceFactory
from hypic_sdk.server.serving import serving
from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.site import SITE
from hypic_sdk.server.sqlite_catalog import SqliteCatalog
from hypic_sdk.server.supervisor import EngineState, EngineSupervisor
from hypic_sdk.server.tenants import Tenants
from hypic_sdk.server.worker_gate import GateSettings
from hypic_sdk.service import ModelFacts
from hypic_sdk.transport.control import EngineReady, Question
from hypic_sdk.transport.messages import SamplingParams
from hypic_sdk.transport.process_settings import ProcessSettings

logger = logging.getLogger(__name__)

WATCH_S = 0.5  # how soon an engine that gave up ends the server


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """One server on one model folder."""

    model_folder: Path
    model_name: str
    host: str = "127.0.0.1"
    port: int = 30_000
    keys_file: Path | None = None
    segments_file: Path | None = None  # none: registered segments are gone with the process
    load_timeout_s: float = 1800.0
    log_level: str = "INFO"
    engine: EngineConfig = field(default_factory=EngineConfig)
    is_scripted: bool = False  # no model: a script answers, with the folder's tokenizer
    script_file: Path | None = None  # none: what is built in
    server: ServerSettings = field(default_factory=ServerSettings)
    num_workers: int = 1  # engine processes of this host behind one router
    gate: GateSettings | None = None  # where workers of other hosts are let in


async def serve(
    settings: LaunchSettings,
    on_ready: Callable[[str], None],
    engines: EngineSupervisor | Fleet | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then let what is in flight end; a second one ends it at once.

    SIGUSR1 lets reuse go on that live checks switched off.

    Args:
        on_ready: called with the base URL once requests are answered.
        engines: not begun; none: those that the settings want.
    Raises:
        HypicError: what keeps the engine from starting, or the server from listening.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    tenants = Tenants() if settings.keys_file is None else Tenants.from_file(settings.keys_file)
    supervisor = engines or _engines(settings)
    loop.add_signal_handler(signal.SIGUSR1, lambda: loop.run_in_executor(None, _resume, supervisor))
    with ExitStack() as stack:
        open_catalog = _registry(settings.segments_file, stack)
        stack.callback(supervisor.stop)
        supervisor.start()
        ready = await _ready(supervisor, settings, stop)
        if ready is None:
            return
        factory = ServiceFactory.from_folder(
            settings.model_folder,
            supervisor.link,
            model_name=settings.model_name,
            facts=_facts(settings.engine, ready),
            # how the packaged model wants to be sampled is nothing to a script
            sampling=SamplingParams() if settings.is_scripted else None,
            open_catalog=open_catalog,
        )
        factory.check_model(ready.vocab_size, ready.eos_token_ids)
        app = create_app(factory, supervisor.link, settings=settings.server, tenants=tenants)
        hurrying = asyncio.ensure_future(_hurry(hurry, app[SITE].drain))
        try:
            async with serving(app, host=settings.host, port=settings.port) as url:
                on_ready(url)
                await _until_stopped(supervisor, stop)
        finally:
            hurrying.cancel()


def _facts(config: EngineConfig, ready: EngineReady) -> ModelFacts:
    return ModelFacts(
        config.reuse,
        ready.conv_width,
        ready.max_context_tokens,
        is_checked=config.shadow is not None,
    )


def _resume(engines: EngineSupervisor | Fleet) -> None:
    """Let every engine reuse again, if live checks switched that off; the operator's own act."""
    try:
        engines.link.ask(Question.RESUME)
    except HypicError as error:
        logger.error("reuse is not resumed code=%s", error.code)
    else:
        logger.warning("reuse is resumed")


async def _hurry(hurry: asyncio.Event, drain: Drain) -> None:
    await hurry.wait()
    logger.info("stopping at once")
    drain.hurry()


def _engines(settings: LaunchSettings) -> EngineSupervisor | Fleet:
    """The engine process that these settings want, or several."""
    process = ProcessSettings(
        str(settings.model_folder),
        settings.engine,
        settings.log_level,
        script_file=None if settings.script_file is None else str(settings.script_file),
    )
    if settings.num_workers != 1 or settings.gate is not None:
        if settings.is_scripted:
            raise ConfigError("a script is one worker: leave --workers at 1")
        if settings.num_workers == 0 and settings.gate is None:
            raise ConfigError("a server without workers needs those of other hosts: --gate")
        return Fleet(process, settings.num_workers, gate=settings.gate)
    if settings.is_scripted:
        return EngineSupervisor(process, module="hypic_sdk.scripted.process")
    return EngineSupervisor(process)


def _registry(path: Path | None, stack: ExitStack) -> OpenCatalog | None:
    """Catalogs in a file, which is closed with the stack; none: each tenant's in memory.

    Raises:
        ConfigError: a file that can not be used.
    """
    if path is None:
        return None
    file = stack.enter_context(SegmentFile(path))
    return lambda namespace, tokenizer, limits: SqliteCatalog(
        file, namespace, tokenizer, limits=limits
    )


async def _ready(
    supervisor: EngineSupervisor | Fleet, settings: LaunchSettings, stop: asyncio.Event
) -> EngineReady | None:
    """What the engine says of itself when it is ready; none if it is to end before that."""
    waiting = asyncio.ensure_future(
        asyncio.to_thread(supervisor.wait_ready, settings.load_timeout_s)
    )
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        await asyncio.to_thread(supervisor.stop)
        await asyncio.wait({waiting})
        waiting.exception()  # that it was stopped is no news
        return None
    stopped.cancel()
    return waiting.result()


async def _until_stopped(supervisor: EngineSupervisor | Fleet, stop: asyncio.Event) -> None:
    """Wait for the signal.

    Raises:
        HypicError: the engine can not be started again.
    """
    while not stop.is_set():
        health = supervisor.health
        if health.state is EngineState.FAILED:
            raise health.error or WorkerError("the engine can not be started again")
        try:
            await asyncio.wait_for(stop.wait(), WATCH_S)
        except TimeoutError:
            continue
    logger.info("stopping")
