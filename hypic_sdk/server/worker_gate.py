"""Lets workers of other hosts in, and hears them: one port, under a key."""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from hypic_sdk.config import EngineConfig
from hypic_sdk.errors import ConfigError, HypicError, WorkerError, WorkerLost, from_payload
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.server.engine_link import EngineLink
from hypic_sdk.server.suspects import Suspects
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import (
    Alive,
    EngineFailed,
    EngineReady,
    EntriesChanged,
    Join,
    Leave,
    Refused,
    Welcome,
)
from hypic_sdk.transport.fleet_channel import RouterEnd
from hypic_sdk.transport.peer_key import PeerKey
from hypic_sdk.version import __version__

logger = logging.getLogger(__name__)

POLL_S = 0.1
ALIVE_EVERY_S = 1.0  # signs of life that workers get: without them they end
PLACE = re.compile(r"(?!w[0-9]+$)[A-Za-z0-9_]{1,30}")
"""Of workers of other hosts; w0, w1 ... are those of the router's own."""


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Where workers of other hosts are let in."""

    host: str  # an address of this machine on the workers' own network
    port: int  # 0 is one that is free
    key_file: Path
    may_be_public: bool = False


class GateListener(Protocol):
    """Who hears of workers that come and go; called on the gate's thread."""

    def check(self, worker: WorkerId, ready: EngineReady) -> None:
        """Raises ConfigError: a worker that is not like the others."""
        ...

    def joined(self, worker: WorkerId, link: EngineLink) -> None:
        """A worker takes requests."""
        ...

    def heard(self, worker: WorkerId, message: Message) -> None:
        """A worker said something."""
        ...

    def left(self, worker: WorkerId) -> None:
        """A worker is gone."""
        ...


@final
class _ToWorker:
    """A `MessageSender` to one worker."""

    def __init__(self, end: RouterEnd, connection: bytes) -> None:
        self._end = end
        self._connection = connection

    def send(self, message: Message) -> None:
        self._end.send(self._connection, message)


@dataclass(slots=True)
class _Remote:
    """One worker, from its welcome on."""

    worker: WorkerId
    place: str
    link: EngineLink
    heard_s: float
    is_ready: bool = False


@final
class WorkerGate:
    """All workers of other hosts, on one thread.

    Nothing says that a host is gone but silence: after `hung_after_s` a worker is lost.  One that
    is started again at the same place is another worker, and the one before it is lost at once.
    """

    def __init__(
        self,
        settings: GateSettings,
        config: EngineConfig,
        listener: GateListener,
        suspects: Suspects,
        *,
        hung_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to listen; nobody is let in before `start`.

        Raises:
            ConfigError: no key, or an address that is refused.
        """
        key = PeerKey.from_file(settings.key_file)
        self._end = RouterEnd(
            settings.host, settings.port, key, may_be_public=settings.may_be_public
        )
        self.address = self._end.address
        self._config = config
        self._listener = listener
        self._suspects = suspects
        self._hung_after_s = hung_after_s
        self._clock = clock
        self._remotes: dict[bytes, _Remote] = {}
        self._numbers = itertools.count()
        self.num_joined = 0
        self._told_s = 0.0
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hypic-gate", daemon=True)

    def start(self) -> None:
        """Let workers in."""
        self._thread.start()

    def stop(self) -> None:
        """Send all workers away; what they were asked for ends with WorkerLost."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._end.close()

    def links(self) -> list[EngineLink]:
        """To the workers that are here."""
        return [remote.link for remote in list(self._remotes.values()) if remote.is_ready]

    # -- the thread

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                heard = self._end.receive(POLL_S)
                if heard is not None:
                    self._take(*heard)
                self._tick()
            except WorkerError:
                logger.exception("a message of a worker was not understood")
            except Exception:
                # a bug that one message met; the other workers need this thread
                logger.exception("a message of a worker could not be dealt with")
        for connection in list(self._remotes):
            self._refuse(connection, WorkerLost("the router ends"))
            self._lose(connection, "the router ends")
        self._end.receive(POLL_S)  # what is queued is dropped by closing; let it go out

    def _take(self, connection: bytes, message: Message) -> None:
        if isinstance(message, Join):
            self._welcome(connection, message)
            return
        remote = self._remotes.get(connection)
        if remote is None:  # lost before, or of a router that was here before
            if not isinstance(message, Leave):
                self._refuse(connection, WorkerLost("the router does not know this worker"))
            return
        remote.heard_s = self._clock()
        if isinstance(message, EngineReady):
            self._ready(connection, remote, message)
        elif isinstance(message, EngineFailed):
            self._lose(connection, f"it can not start: {from_payload(message.error)}")
        elif isinstance(message, Leave):
            self._lose(connection, "it leaves")
        elif isinstance(message, Alive | EntriesChanged):
            self._listener.heard(remote.worker, message)
        else:
            self._listener.heard(remote.worker, message)
            remote.link.take(message)

    def _welcome(self, connection: bytes, message: Join) -> None:
        known = self._remotes.get(connection)
        if known is not None:  # it asked more than once
            self._end.send(connection, Welcome(known.worker, self._config))
            return
        if message.version != __version__:
            said = f"the router has version {__version__}, this worker {message.version}"
            self._refuse(connection, ConfigError(said))
            return
        if PLACE.fullmatch(message.place) is None:
            said = f"not a name of a place: {message.place!r} (letters, digits, _; not w0, w1 ...)"
            self._refuse(connection, ConfigError(said))
            return
        for other, remote in list(self._remotes.items()):
            if remote.place == message.place:
                # whoever still hears this has a living rival: coming again would throw that one out
                said = f"another worker came to place {message.place}: no two hosts may have one"
                self._refuse(other, ConfigError(said))
                self._lose(other, "another came to its place", died=True)
        worker = WorkerId(f"{message.place}-{next(self._numbers)}")
        link = EngineLink(suspects=self._suspects, waits=False)
        self._remotes[connection] = _Remote(worker, message.place, link, self._clock())
        self._end.send(connection, Welcome(worker, self._config))
        logger.info("worker %s is welcome", worker)

    def _ready(self, connection: bytes, remote: _Remote, message: EngineReady) -> None:
        try:
            self._listener.check(remote.worker, message)
        except HypicError as error:
            self._refuse(connection, error)
            self._lose(connection, str(error))
            return
        remote.link.attach(_ToWorker(self._end, connection))
        remote.is_ready = True
        self.num_joined += 1
        self._listener.joined(remote.worker, remote.link)
        logger.info("worker %s is ready load_s=%.1f", remote.worker, message.load_s)

    def _refuse(self, connection: bytes, error: HypicError) -> None:
        self._end.send(connection, Refused(error.to_payload()))

    def _lose(self, connection: bytes, reason: str, *, died: bool = False) -> None:
        """A worker is gone; if it died, what it had begun may be why."""
        remote = self._remotes.pop(connection)
        logger.warning("worker %s is lost: %s", remote.worker, reason)
        if remote.is_ready:
            self._listener.left(remote.worker)
        error = WorkerLost(f"the worker is gone ({reason}); try again")
        if died:
            remote.link.lose_process(error)
        remote.link.lose_all(error)

    def _tick(self) -> None:
        now_s = self._clock()
        for connection, remote in self._hung(now_s):
            silent_s = now_s - remote.heard_s
            self._refuse(connection, WorkerLost("this worker was silent for too long"))
            self._lose(connection, f"it was silent for {silent_s:.1f} s", died=True)
        is_due = now_s - self._told_s > ALIVE_EVERY_S
        for connection, remote in self._remotes.items():
            remote.link.tick()
            if is_due:
                self._end.send(connection, Alive("router"))
        if is_due:
            self._told_s = now_s

    def _hung(self, now_s: float) -> Iterator[tuple[bytes, _Remote]]:
        """Workers that said nothing for too long; one that loads its weights has its time."""
        for connection, remote in list(self._remotes.items()):
            if remote.is_ready and now_s - remote.heard_s > self._hung_after_s:
                yield connection, remote
