"""Several engine processes of one host behind one router."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.membership import WorkerState
from hypic_sdk.router.router import Router
from hypic_sdk.server.supervisor import (
    HUNG_AFTER_S,
    EngineHealth,
    EngineState,
    EngineSupervisor,
)
from hypic_sdk.server.suspects import Suspects
from hypic_sdk.server.worker_status import WorkerFacts
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import Alive, EngineReady, EntriesChanged, Question
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import EngineRequest, WarmRequest
from hypic_sdk.transport.peer_key import check_private
from hypic_sdk.transport.process_settings import PeerSettings, ProcessSettings
from hypic_sdk.transport.worker_port import WorkerPort

logger = logging.getLogger(__name__)


@final
class Fleet:
    """Starts, watches and ends `num_workers` engine processes; `link` is the router over them.

    Each is kept alive by a supervisor of its own.  One that dies takes its entries along, and the
    requests that had begun to speak; what nobody has heard of yet another one answers.  It comes
    back empty, under another name.
    """

    def __init__(
        self,
        settings: ProcessSettings,
        num_workers: int,
        *,
        costs: CostModel | None = None,
        hung_after_s: float = HUNG_AFTER_S,
        hosts: Sequence[str] | None = None,
    ) -> None:
        """
        Args:
            hung_after_s: how long a worker may be silent before it is ended.
            hosts: an address of this machine for each worker's end of links; none: loopback.
        Raises:
            ConfigError: an address that is not a private one.
        """
        assert hosts is None or len(hosts) == num_workers, "an address for each worker"
        for host in hosts or ():
            check_private(host)
        self._folder = Path(tempfile.mkdtemp(prefix="hypic-peers-"))  # mode 0700
        suspects = Suspects()
        self._supervisors = [
            EngineSupervisor(
                settings,
                place=_Place(self, index, num_workers, hosts[index] if hosts else "127.0.0.1"),
                suspects=suspects,
                hung_after_s=hung_after_s,
            )
            for index in range(num_workers)
        ]
        self.link = FleetLink(Router(costs), self._supervisors)

    @property
    def folder(self) -> Path:
        """Where workers meet."""
        return self._folder

    @property
    def health(self) -> EngineHealth:
        """Ready while anybody is; failed once nobody can be started."""
        all_health = [supervisor.health for supervisor in self._supervisors]
        num_restarts = sum(health.num_restarts for health in all_health)
        for state in (EngineState.READY, EngineState.STARTING, EngineState.FAILED):
            for health in all_health:
                if health.state is state:
                    return replace(health, num_restarts=num_restarts)
        return EngineHealth(EngineState.STOPPED, num_restarts)

    @property
    def process_ids(self) -> list[int | None]:
        """Of the running engine processes, by their place."""
        return [supervisor.process_id for supervisor in self._supervisors]

    def ports(self) -> Mapping[WorkerId, WorkerPort]:
        """The engines that are there now, each without the router: for measurements."""
        return self.link.router.ports()

    def start(self) -> None:
        """Start all processes; returns at once."""
        for supervisor in self._supervisors:
            supervisor.start()

    def wait_ready(self, timeout_s: float) -> EngineReady:
        """Wait until every engine takes requests.

        Raises:
            HypicError: what an engine said when it could not start.
            WorkerLost: not all ready after `timeout_s`, or stopped.
        """
        deadline_s = time.monotonic() + timeout_s
        told = [s.wait_ready(max(0.0, deadline_s - time.monotonic())) for s in self._supervisors]
        return told[0]

    def stop(self) -> None:
        """End all processes; what is in flight ends with WorkerLost."""
        for supervisor in self._supervisors:
            supervisor.ask_to_stop()
        for supervisor in self._supervisors:
            supervisor.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def joined(self, worker: WorkerId, supervisor: EngineSupervisor) -> None:
        """A process is ready."""
        self.link.router.join(worker, supervisor.link)

    def left(self, worker: WorkerId) -> None:
        """A process is gone: the others need not wait for it."""
        self.link.router.leave(worker)
        for supervisor in self._supervisors:
            supervisor.link.tell_lost_peer(worker)
        (self._folder / f"peer-{worker}.sock").unlink(missing_ok=True)

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


@final
class _Place:
    """One place in a fleet: names each process that takes it."""

    def __init__(self, fleet: Fleet, index: int, num_workers: int, host: str) -> None:
        self._host = host
        self._fleet = fleet
        self._index = index
        self._num_workers = num_workers

    def settings(self, base: ProcessSettings, num_restarts: int) -> ProcessSettings:
        """What the next process is started with."""
        name = self._name(num_restarts)
        folder = str(self._fleet.folder)
        peers = PeerSettings(name, folder, self._index, self._num_workers, self._host)
        return replace(base, peers=peers)

    def ready(self, supervisor: EngineSupervisor, num_restarts: int) -> None:
        """The process takes requests."""
        self._fleet.joined(WorkerId(self._name(num_restarts)), supervisor)

    def heard(self, num_restarts: int, message: Message) -> None:
        """The process said something."""
        router, worker = self._fleet.link.router, WorkerId(self._name(num_restarts))
        router.heard(worker, message if isinstance(message, Alive) else None)
        if isinstance(message, EntriesChanged):
            router.entries_changed(worker, message)

    def lost(self, num_restarts: int) -> None:
        """The process is gone."""
        self._fleet.left(WorkerId(self._name(num_restarts)))

    def _name(self, num_restarts: int) -> str:
        return f"w{self._index}-{num_restarts}"


def place_of(worker: WorkerId) -> str:
    """The part of a worker's name that outlives its process."""
    return worker.rpartition("-")[0]


@final
class FleetLink:
    """The router as the server sees it: a `WorkerPort`, and a `WorkerStatus`."""

    def __init__(self, router: Router, supervisors: Sequence[EngineSupervisor]) -> None:
        self.router = router
        self._supervisors = supervisors

    def is_ready(self) -> bool:
        """Whether any worker takes requests; never waits."""
        return WorkerState.READY in self.router.states().values()

    def generation(self) -> int:
        """Another number after any worker was started again: some entries are gone then."""
        return sum(supervisor.link.generation() for supervisor in self._supervisors)

    def usage(self) -> Mapping[str, Any]:
        """Bytes of all stores by state.  Raises WorkerLost while no worker is there."""
        usage: Mapping[str, Any] = self.router.ask(Question.USAGE)
        return usage

    def workers(self) -> Mapping[str, str]:
        """Every worker and its state."""
        return {worker: state.value for worker, state in self.router.states().items()}

    def worker_facts(self) -> Mapping[str, WorkerFacts]:
        """Every place, whatever process is there now; a process that is gone counts on."""
        states = self.router.states()
        facts = {f"w{index}": WorkerFacts("gone") for index in range(len(self._supervisors))}
        for worker, tally in self.router.tallies().items():
            place = place_of(worker)
            known = facts[place]
            sums = {name: getattr(known, name) + value for name, value in asdict(tally).items()}
            facts[place] = replace(known, **sums)
        for worker, state in states.items():
            facts[place_of(worker)] = replace(facts[place_of(worker)], state=state.value)
        return facts

    def submit(
        self,
        message: EngineRequest | WarmRequest,
        on_event: Callable[[Event], None] | None = None,
    ) -> Iterator[Event]:
        """Begin a request."""
        return self.router.submit(message, on_event)

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request."""
        self.router.cancel(request_id)

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        """End one reply by STOP."""
        self.router.finish(request_id, reply_index)

    def probe(self, parts: Sequence[PromptPart], namespace: str) -> Sequence[bool]:
        """Whether each segment is held by anybody."""
        return self.router.probe(parts, namespace)

    def delete(self, parts: Sequence[PromptPart], namespace: str) -> None:
        """Drop entries and chains on every worker."""
        self.router.delete(parts, namespace)

    def ask(
        self,
        question: Question,
        parts: Sequence[PromptPart] = (),
        namespace: str = "",
        number: int = 0,
    ) -> Any:
        """Ask every worker, and join their answers."""
        return self.router.ask(question, parts, namespace, number)
