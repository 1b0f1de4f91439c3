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
from typing import Self, final

import msgspec

from hypic_sdk.errors import HypicError, WorkerError, WorkerLost, from_payload
from hypic_sdk.server.engine_link import EngineLink
from hypic_sdk.transport.channel import Channel
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import EngineFailed, EngineReady
from hypic_sdk.transport.process_settings import SETTINGS_FILE, ProcessSettings

logger = logging.getLogger(__name__)

POLL_S = 0.1  # how soon a dead process is noticed
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


@final
class EngineSupervisor:
    """Runs an engine process on a thread of its own, and `link` over it.

    A process that dies is noticed at once: what was in flight ends with WorkerLost, readiness is
    false, and another is started, after a pause that grows while none lives long.  One that
    says it can not start is not started again.
    """

    def __init__(self, settings: ProcessSettings) -> None:
        self.link = EngineLink()
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
        while not self._is_stopping.wait(pause_s):
            self._set(EngineHealth(EngineState.STARTING, num_restarts))
            started_s = time.monotonic()
            error = self._run_process(num_restarts)
            if error is not None:
                self._set(EngineHealth(EngineState.FAILED, num_restarts, error=error))
                return
            lived_s = time.monotonic() - started_s
            pause_s = 0.0 if lived_s > MAX_BACKOFF_S else min(MAX_BACKOFF_S, 2 * pause_s + 0.5)
            num_restarts += 1
        self._set(EngineHealth(EngineState.STOPPED, num_restarts))

    def _set(self, health: EngineHealth) -> None:
        with self._changed:
            self._health = health
            self._changed.notify_all()

    def _run_process(self, num_restarts: int) -> HypicError | None:
        """One process from start to end; what it said if it could not start."""
        folder = Path(tempfile.mkdtemp(prefix="hypic-"))  # mode 0700
        try:
            with Channel(folder, is_api=True) as channel:
                self._process = self._spawn(folder)
                try:
                    return self._watch(self._process, channel, num_restarts)
                finally:
                    self.link.lose_all(WorkerLost("the engine process ended; try again"))
                    self._end(self._process)
        finally:
            self._process = None
            shutil.rmtree(folder, ignore_errors=True)

    def _spawn(self, folder: Path) -> subprocess.Popen[bytes]:
        (folder / SETTINGS_FILE).write_bytes(msgspec.json.encode(self._settings))
        command = [sys.executable, "-m", "hypic_sdk.engine.process", str(folder)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def _watch(
        self, process: subprocess.Popen[bytes], channel: Channel, num_restarts: int
    ) -> HypicError | None:
        """Hand on its messages until it ends or is to end."""
        while not self._is_stopping.is_set():
            message = self._receive(channel)
            if isinstance(message, EngineReady):
                self.link.attach(channel)
                self._set(EngineHealth(EngineState.READY, num_restarts, ready=message))
                logger.info("engine ready pid=%d load_s=%.1f", process.pid, message.load_s)
            elif isinstance(message, EngineFailed):
                return from_payload(message.error)
            elif message is not None:
                self.link.take(message)
            elif process.poll() is not None:
                logger.error("engine ended pid=%d status=%s", process.pid, process.returncode)
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
