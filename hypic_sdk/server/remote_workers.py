"""Keeps workers alive on a host whose router is elsewhere: start, wait for the end, start again."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import msgspec

from hypic_sdk.errors import ConfigError
from hypic_sdk.transport.peer_key import PeerKey, check_private
from hypic_sdk.transport.process_settings import HOPELESS, SETTINGS_FILE, RemoteSettings

logger = logging.getLogger(__name__)

POLL_S = 0.1
STOP_TIMEOUT_S = 5.0  # from asking a process to end to killing it
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0  # between starts of one that keeps dying


@dataclass(frozen=True, slots=True)
class HostOfWorkers:
    """What all workers that are started on this host share."""

    router: str  # HOST:PORT
    key_file: Path
    host: str  # an address of this machine
    place: str  # and its name
    model_folder: Path
    device: str | None = None
    budget_bytes: int | None = None  # of each; none: what the router says
    log_level: str = "WARNING"

    def all_settings(self, indices: Iterable[int], num_workers: int) -> list[RemoteSettings]:
        """Of the workers of these places out of so many.

        Raises:
            ConfigError: an address that is refused, or no key.
        """
        check_private(self.host)
        PeerKey.from_file(self.key_file)
        return [
            RemoteSettings(
                self.router, str(self.key_file.absolute()), f"{self.place}_{index}", self.host,
                str(self.model_folder), index, num_workers, self.device, self.budget_bytes,
                log_level=self.log_level,
            )
            for index in indices
        ]  # fmt: skip


def write_new_key(path: Path) -> None:
    """A key that nobody has, in a new file.  Raises ConfigError: it exists."""
    PeerKey.new().write(path)


@final
class RemoteWorker:
    """One place among the router's workers, whichever process is there."""

    def __init__(
        self, settings: RemoteSettings, *, module: str = "hypic_sdk.engine.remote_process"
    ) -> None:
        self._settings = settings
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int | None:
        """Of the process that runs now, if one does."""
        process = self._process
        return None if process is None else process.pid

    def run(self, stop: threading.Event) -> None:
        """Keep a process there until told to stop.

        Raises:
            ConfigError: the router refused it, or it can not start: it would again.
        """
        pause_s = 0.0
        while not stop.wait(pause_s):
            started_s = time.monotonic()
            status = self._run_process(stop)
            if status == HOPELESS and not stop.is_set():
                raise ConfigError(f"worker {self._settings.place} can not serve (see its log)")
            lived_s = time.monotonic() - started_s
            pause_s = min(MAX_PAUSE_S, 2 * pause_s + FIRST_PAUSE_S)
            if lived_s > MAX_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            if not stop.is_set():
                logger.warning("worker %s ended status=%s", self._settings.place, status)

    def _run_process(self, stop: threading.Event) -> int:
        folder = Path(tempfile.mkdtemp(prefix="hypic-"))  # mode 0700
        try:
            (folder / SETTINGS_FILE).write_bytes(msgspec.json.encode(self._settings))
            command = [sys.executable, "-m", self._module, str(folder)]
            self._process = process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            while process.poll() is None and not stop.wait(POLL_S):
                pass
            return self._end(process)
        finally:
            self._process = None
            shutil.rmtree(folder, ignore_errors=True)

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """Make sure that it is gone; its exit status."""
        process.terminate()
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("worker pid=%d did not end, killed", process.pid)
            process.kill()
            return process.wait()


def keep_running(all_settings: Sequence[RemoteSettings], stop: threading.Event) -> None:
    """Keep all of them running until told to stop; one that is hopeless ends them all.

    Raises:
        ConfigError: why it is.
    """
    errors: list[ConfigError] = []

    def run(worker: RemoteWorker) -> None:
        try:
            worker.run(stop)
        except ConfigError as error:
            errors.append(error)
            stop.set()

    threads = [
        threading.Thread(target=run, args=(RemoteWorker(settings),), name="hypic-remote")
        for settings in all_settings
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
