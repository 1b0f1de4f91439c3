"""Several engine processes behind one router: of this host, and of others that join it."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from hypic_sdk.errors import ConfigError, WorkerLost
from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.membership import WorkerState
from hypic_sdk.router.router import Router
from hypic_sdk.server.engine_link import EngineLink
from hypic_sdk.server.likeness import Likeness
from hypic_sdk.server.supervisor import (
    HUNG_AFTER_S,
    EngineHealth,
    EngineState,
    EngineSupervisor,
)
from hypic_sdk.server.suspects import Suspects
from hypic_sdk.server.worker_gate import GateSettings, WorkerGate
from hypic_sdk.server.worker_status import WorkerFacts
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import (
    Alive,
    EngineReady,
    EntriesChanged,
    PeerHere,
    PeerLost,
    Question,
)
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import EngineRequest, WarmRequest
from hypic_sdk.transport.peer_key import check_private
from hypic_sdk.transport.process_settings import PeerSettings, ProcessSettings
from hypic_sdk.transport.worker_port import WorkerPort

logger = logging.getLogger(__name__)


@final
class Fleet:
    """Starts, watches and ends `num_workers` engine processes; `link` is the router over them.

    With a gate, workers of other hosts join and leave as they like.

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
        module: str = "hypic_sdk.engine.process",
        gate: GateSettings | None = None,
    ) -> None:
        """
        Args:
            gate: where workers of other hosts are let in; the links of ours are at its address.
            module: what each process runs.
            hung_after_s: how long a worker may be silent before it is ended.
            hosts: an address of this machine for each worker's end of links; none: loopback.
        Raises:
            ConfigError: an address that is not a private one, or a gate without its key.
        """
        assert hosts is None or len(hosts) == num_workers, "an address for each worker"
        for host in hosts or ():
            check_private(host)
        suspects = Suspects()
        self._reference: EngineReady | None = None  # what the first worker said of its model
        self._likeness = Likeness(guests_may_set=num_workers == 0)
        self.endpoints: dict[WorkerId, str] = {}
        self._changed = threading.Condition()
        self._is_stopping = False
        self._gate: WorkerGate | None = None
        if gate is not None:
            self._gate = WorkerGate(
                gate, settings.config, self, suspects, hung_after_s=hung_after_s
            )
        self._folder = Path(tempfile.mkdtemp(prefix="hypic-peers-"))  # mode 0700
        here = _peers_here(self._folder, num_workers, gate)
        self._supervisors = [
            EngineSupervisor(
                settings,
                place=_Place(
                    self, replace(here, index=index, host=hosts[index] if hosts else here.host)
                ),
                suspects=suspects,
                hung_after_s=hung_after_s,
                module=module,
            )
            for index in range(num_workers)
        ]
        self.link = FleetLink(Router(costs), num_workers, self._num_started)

    @property
    def folder(self) -> Path:
        """Where workers meet."""
        return self._folder

    @property
    def gate_address(self) -> str:
        """HOST:PORT where workers of other hosts are let in; empty: nowhere."""
        return "" if self._gate is None else self._gate.address

    @property
    def health(self) -> EngineHealth:
        """Ready while anybody is; failed once nobody can be started."""
        all_health = [supervisor.health for supervisor in self._supervisors]
        num_restarts = sum(health.num_restarts for health in all_health)
        if self._gate is not None:
            state = EngineState.READY if self._gate.links() else EngineState.STARTING
            all_health.append(EngineHealth(state, 0, ready=self._reference))
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
        if self._gate is not None and not self._supervisors:
            self._gate.start()

    def wait_ready(self, timeout_s: float) -> EngineReady:
        """Wait until every engine of this host takes requests; without any, until one joined.

        Raises:
            HypicError: what an engine said when it could not start.
            WorkerLost: not all ready after `timeout_s`, or stopped.
        """
        deadline_s = time.monotonic() + timeout_s
        for supervisor in self._supervisors:
            supervisor.wait_ready(max(0.0, deadline_s - time.monotonic()))
        with self._changed:
            self._changed.wait_for(
                lambda: self._reference or self._is_stopping,
                max(0.0, deadline_s - time.monotonic()),
            )
        if self._reference is None:
            raise WorkerLost(f"no worker joined within {timeout_s:g} s")
        return self._reference

    def stop(self) -> None:
        """End all processes; what is in flight ends with WorkerLost."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._gate is not None:
            self._gate.stop()
        for supervisor in self._supervisors:
            supervisor.ask_to_stop()
        for supervisor in self._supervisors:
            supervisor.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def check(self, worker: WorkerId, ready: EngineReady, *, is_guest: bool = True) -> None:
        """Hold a worker to those that are here.

        Args:
            is_guest: whether it is of another host.
        Raises:
            ConfigError: another model, other limits, or other arithmetic.
        """
        self._likeness.admit(worker, ready, is_guest=is_guest)
        with self._changed:
            is_first = self._reference is None
            if is_first:
                self._reference = ready
                self._changed.notify_all()
        if is_first and self._gate is not None and self._supervisors:
            self._gate.start()  # others are held to what is here

    def joined(self, worker: WorkerId, link: EngineLink) -> None:
        """A worker is ready."""
        self.link.router.join(worker, link)
        for other, endpoint in list(self.endpoints.items()):
            link.tell_of_peer(PeerHere(other, endpoint))

    def heard(self, worker: WorkerId, message: Message) -> None:
        """A worker said something."""
        self.link.router.heard(worker, message if isinstance(message, Alive) else None)
        if isinstance(message, EntriesChanged):
            self.link.router.entries_changed(worker, message)
        if isinstance(message, Alive) and message.endpoint and worker not in self.endpoints:
            self.endpoints[worker] = message.endpoint
            self._tell_all(PeerHere(worker, message.endpoint))

    def left(self, worker: WorkerId) -> None:
        """A worker is gone: the others need not wait for it."""
        self._likeness.leave(worker)
        self.link.router.leave(worker)
        self.endpoints.pop(worker, None)
        self._tell_all(PeerLost(worker))
        (self._folder / f"peer-{worker}.sock").unlink(missing_ok=True)

    def _tell_all(self, message: PeerHere | PeerLost) -> None:
        for link in (
            *(supervisor.link for supervisor in self._supervisors),
            *(self._gate.links() if self._gate is not None else ()),
        ):
            link.tell_of_peer(message)

    def _num_started(self) -> int:
        """How many workers there were so far."""
        joined = 0 if self._gate is None else self._gate.num_joined
        return joined + sum(supervisor.link.generation() for supervisor in self._supervisors)

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

    def __init__(self, fleet: Fleet, peers: PeerSettings) -> None:
        self._fleet = fleet
        self._peers = peers  # but for its name

    def settings(self, base: ProcessSettings, num_restarts: int) -> ProcessSettings:
        """What the next process is started with."""
        return replace(base, peers=replace(self._peers, worker=self._name(num_restarts)))

    def ready(self, supervisor: EngineSupervisor, num_restarts: int, said: EngineReady) -> None:
        """The process takes requests.

        Raises:
            ConfigError: it is not like the others, and the next would not be either.
        """
        worker = WorkerId(self._name(num_restarts))
        try:
            self._fleet.check(worker, said, is_guest=False)
        except ConfigError as error:
            logger.error("worker %s is refused: %s", worker, error)
            raise
        self._fleet.joined(worker, supervisor.link)

    def heard(self, num_restarts: int, message: Message) -> None:
        """The process said something."""
        self._fleet.heard(WorkerId(self._name(num_restarts)), message)

    def lost(self, num_restarts: int) -> None:
        """The process is gone."""
        self._fleet.left(WorkerId(self._name(num_restarts)))

    def _name(self, num_restarts: int) -> str:
        return f"w{self._peers.index}-{num_restarts}"


def _peers_here(folder: Path, num_workers: int, gate: GateSettings | None) -> PeerSettings:
    """How the workers of this host meet the others, but for their names and places."""
    if gate is None:
        return PeerSettings("", str(folder), 0, num_workers)
    return PeerSettings("", "", 0, num_workers, gate.host, gate.may_be_public, str(gate.key_file))


def place_of(worker: WorkerId) -> str:
    """The part of a worker's name that outlives its process."""
    return worker.rpartition("-")[0]


@final
class FleetLink:
    """The router as the server sees it: a `WorkerPort`, and a `WorkerStatus`."""

    def __init__(self, router: Router, num_places: int, num_started: Callable[[], int]) -> None:
        self.router = router
        self._num_places = num_places  # of this host
        self._num_started = num_started

    def is_ready(self) -> bool:
        """Whether any worker takes requests; never waits."""
        return WorkerState.READY in self.router.states().values()

    def generation(self) -> int:
        """Another number after any worker was started again: some entries are gone then."""
        return self._num_started()

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
        facts = {f"w{index}": WorkerFacts("gone") for index in range(self._num_places)}
        for worker, tally in self.router.tallies().items():
            place = place_of(worker)
            known = facts.get(place, WorkerFacts("gone"))
            sums = {name: getattr(known, name) + value for name, value in asdict(tally).items()}
            facts[place] = replace(known, **sums)
        for worker, state in states.items():
            known = facts.get(place_of(worker), WorkerFacts("gone"))
            facts[place_of(worker)] = replace(known, state=state.value)
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
