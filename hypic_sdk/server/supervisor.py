"""Keeps one engine process alive: start, ready, lost, start again."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, final

import msgspec

from hypic_sdk.errors import ConfigError, HypicError, WorkerError, WorkerLost, from_payload
from hypic_sdk.server.engine_link import RETRY_S, EngineLink
from hypic_sdk.server.suspects import Suspects
from hypic_sdk.transport.channel import Channel
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import Alive, EngineFailed, EngineReady, EntriesChanged
from hypic_sdk.transport.process_settings import SETTINGS_FILE, ProcessSettings

logger = logging.getLogger(__name__)

POLL_S = 0.1  # how soon a dead process is noticed
CONNECT_TIMEOUT_S = 5.0  # from an engine's first word to its hearing ours
HUNG_AFTER_S = 15.0  # of silence; signs of life come about once a second
STOP_TIMEOUT_S = 5.0  # from asking a process to end to killing it
MAX_BACKOFF_S = 30.0  # between starts of an engine that keeps dying


class EngineState(Enum):
    """What `/health/ready` goes by."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"  # it can not start; nobody tries again
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """The engine as the supervisor knows it."""

    state: EngineState
    num_restarts: int
    ready: EngineReady | None = None
    error: HypicError | None = None


class Place(Protocol):
    """Where a process stands among several: what it is started with, who hears of it."""

    def settings(self, base: ProcessSettings, num_restarts: int) -> ProcessSettings:
        """What the next process is started with."""
        ...

    def ready(self, supervisor: EngineSupervisor, num_restarts: int, said: EngineReady) -> None:
        """The process takes requests.  Raises ConfigError: it has no place here, nor a next one."""
        ...

    def heard(self, num_restarts: int, message: Message) -> None:
        """The process said something."""
        ...

    def lost(self, num_restarts: int) -> None:
        """The process is gone."""
        ...


@final
class EngineSupervisor:
    """Runs an engine process on a thread of its own, and `link` over it.

    A process that dies is noticed at once: what it had begun to answer ends with WorkerLost, what
    nobody has heard of yet is kept for the next (`EngineLink`), readiness is false, and another is
    started, after a pause that grows while none lives long.  One that says it can not start is not
    started again.
    """

    def __init__(
        self,
        settings: ProcessSettings,
        *,
        module: str = "hypic_sdk.engine.process",
        place: Place | None = None,
        suspects: Suspects | None = None,
        hung_after_s: float = HUNG_AFTER_S,
        retry_s: float = RETRY_S,
    ) -> None:
        """
        Args:
            retry_s: how long after its death what it had may wait to be tried again.
            module: what the process runs.
            place: among other workers; none: there are no others.
            suspects: of all of them.
            hung_after_s: how long a process may be silent before it is ended.
        """
        self._hung_after_s = hung_after_s
        self._place = place
        self.link = EngineLink(suspects=suspects, waits=place is None, retry_s=retry_s)
        self._module = module
        self._settings = settings
        self._changed = threading.Condition()
        self._health = EngineHealth(EngineState.STARTING, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hypic-supervisor", daemon=True)

    @property
    def health(self) -> EngineHealth:
        """As it stands; safe from any thread."""
        return self._health

    @property
    def process_id(self) -> int | None:
        """Of the running engine process, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the first process; returns at once."""
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> EngineReady:
        """Wait until the engine takes requests.

        Raises:
            HypicError: what the engine said when it could not start.
            WorkerLost: not ready after `timeout_s`, or stopped.
        """
        over = (EngineState.READY, EngineState.FAILED, EngineState.STOPPED)
        with self._changed:
            self._changed.wait_for(lambda: self._health.state in over, timeout_s)
            health = self._health
        if health.ready is not None and health.state is EngineState.READY:
            return health.ready
        raise health.error or WorkerLost(f"the engine is not ready after {timeout_s:g} s")

    def ask_to_stop(self) -> None:
        """Begin to `stop`, without waiting."""
        self._is_stopping.set()

    def stop(self) -> None:
        """End the process; what is in flight ends with WorkerLost."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # -- the thread

    def _run(self) -> None:
        num_restarts, pause_s = 0, 0.0
        while not self._is_stopped_within(pause_s):
            self._set(EngineHealth(EngineState.STARTING, num_restarts))
            started_s = time.monotonic()
            error = self._run_process(num_restarts)
            if error is not None:
                self.link.lose_all(WorkerLost(f"the engine can not start: {error}"))
                self._set(EngineHealth(EngineState.FAILED, num_restarts, error=error))
                return
            lived_s = time.monotonic() - started_s
            pause_s = 0.0 if lived_s > MAX_BACKOFF_S else min(MAX_BACKOFF_S, 2 * pause_s + 0.5)
            num_restarts += 1
        self.link.lose_all(WorkerLost("the engine was stopped"))
        self._set(EngineHealth(EngineState.STOPPED, num_restarts))

    def _is_stopped_within(self, pause_s: float) -> bool:
        """Wait; what waits for the next process is ended in time meanwhile."""
        until_s = time.monotonic() + pause_s
        while not self._is_stopping.wait(max(0.0, min(POLL_S, until_s - time.monotonic()))):
            self.link.tick()
            if time.monotonic() >= until_s:
                return False
        return True

    def _set(self, health: EngineHealth) -> None:
        with self._changed:
            self._health = health
            self._changed.notify_all()

    def _run_process(self, num_restarts: int) -> HypicError | None:
        """One process from start to end; what it said if it could not start."""
        folder = Path(tempfile.mkdtemp(prefix="hypic-"))  # mode 0700
        try:
            with Channel(folder, is_api=True) as channel:
                self._process = self._spawn(folder, num_restarts)
                try:
                    return self._watch(self._process, channel, num_restarts)
                finally:
                    if self._place is not None:
                        self._place.lost(num_restarts)
                    self.link.lose_process(WorkerLost("the engine process ended; try again"))
                    self._end(self._process)
        finally:
            self._process = None
            shutil.rmtree(folder, ignore_errors=True)

    def _spawn(self, folder: Path, num_restarts: int) -> subprocess.Popen[bytes]:
        settings = self._settings
        if self._place is not None:
            settings = self._place.settings(settings, num_restarts)
        (folder / SETTINGS_FILE).write_bytes(msgspec.json.encode(settings))
        command = [sys.executable, "-m", self._module, str(folder)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def _watch(
        self, process: subprocess.Popen[bytes], channel: Channel, num_restarts: int
    ) -> HypicError | None:
        """Hand on its messages until it ends or is to end.

        One that has given a sign of life and then says nothing for `hung_after_s` is ended: what it
        was to answer must not wait for it.
        """
        heard_s: float | None = None
        while not self._is_stopping.is_set():
            self.link.tick()
            message = self._receive(channel)
            if message is not None and heard_s is not None:
                heard_s = time.monotonic()
                if self._place is not None:
                    self._place.heard(num_restarts, message)
            if isinstance(message, Alive | EntriesChanged):
                heard_s = time.monotonic()
                continue
            if isinstance(message, EngineReady):
                channel.wait_for_peer(CONNECT_TIMEOUT_S)
                self.link.attach(channel)
                if self._place is not None:
                    try:
                        self._place.ready(self, num_restarts, message)
                    except ConfigError as error:
                        return error
                    heard_s = time.monotonic()
                self._set(EngineHealth(EngineState.READY, num_restarts, ready=message))
                logger.info("engine ready pid=%d load_s=%.1f", process.pid, message.load_s)
            elif isinstance(message, EngineFailed):
                return from_payload(message.error)
            elif message is not None:
                self.link.take(message)
            elif process.poll() is not None:
                logger.error("engine ended pid=%d status=%s", process.pid, process.returncode)
                return None
            elif heard_s is not None and time.monotonic() - heard_s > self._hung_after_s:
                logger.error("engine pid=%d is silent, killed", process.pid)
                process.kill()
                return None
        return None

    def _receive(self, channel: Channel) -> Message | None:
        try:
            return channel.receive(POLL_S)
        except WorkerError:
            logger.exception("a message of the engine was not understood")
            return None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Make sure that it is gone."""
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("engine pid=%d did not end, killed", process.pid)
            process.kill()
            process.wait()
