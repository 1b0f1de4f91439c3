"""Several engines with couriers between them, and a router before them, in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from hypic_sdk.engine.cold_job import ColdJob
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.peer_desk import PeerDesk, PeerFetcher
from hypic_sdk.engine.scheduler import Scheduler
from hypic_sdk.engine.worker import LocalWorker
from hypic_sdk.links.courier import Courier
from hypic_sdk.offline import LocalPort
from hypic_sdk.prompt.segment import PromptPart, SegmentedPrompt, SegmentId
from hypic_sdk.router.assignment import Assign, WorkerId, longest_first
from hypic_sdk.router.costs import CostModel
from hypic_sdk.router.membership import Membership
from hypic_sdk.router.router import Router
from hypic_sdk.store.entry_bytes import payload_digest
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import EngineRequest, TokenEvent
from hypic_sdk.transport.peer_channel import PeerChannel
from tests.engine.harness import engine_of, request_of, token_ids

# computing is dear and sending is cheap: whatever can be spread is spread
SPREADING = CostModel(
    prefill_ms=100, prefill_ms_per_token=100, transfer_ms=0.01, transfer_ms_per_token=0,
    live_ms_per_token=1,
)  # fmt: skip
WAIT_S = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One worker of a cluster."""

    name: WorkerId
    engine: Engine
    worker: LocalWorker
    courier: Courier


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A router and its workers."""

    router: Router
    members: tuple[Member, ...]

    def ask(self, prompt: SegmentedPrompt, **fields: object) -> list[TokenEvent]:
        """A request through the router, to its end."""
        return token_events(self.router.submit(request_of(prompt, **fields)))

    def digests(self, parts: Sequence[PromptPart]) -> list[list[bytes | None]]:
        """What each worker holds of each segment."""
        return [
            member.worker.call(lambda engine: engine.entry_digests(list(parts)))
            for member in self.members
        ]

    def count_computed(self) -> list[SegmentId]:
        """Segments that any worker computes from now on, one item each time."""
        made: list[SegmentId] = []

        def count(scheduler: Scheduler) -> None:
            book = scheduler._commit_job

            def commit(job: ColdJob, now_s: float) -> None:
                if not job.was_fetched and job.segment_id is not None:
                    made.append(job.segment_id)
                book(job, now_s)

            scheduler._commit_job = commit  # type: ignore[method-assign]

        for member in self.members:
            member.worker.call(lambda engine: count(engine._scheduler))
        return made

    def num_leases(self) -> int:
        """Leases that are still open on any worker."""
        return sum(
            member.worker.call(lambda engine: engine.usage().num_leases) for member in self.members
        )


def token_events(events: Iterator[Event]) -> list[TokenEvent]:
    """All events of a generation."""
    return [event for event in events if isinstance(event, TokenEvent)]


@contextmanager
def cluster(
    folder: Path,
    count: int,
    *,
    family: str = "gated_delta_rule",
    costs: CostModel = SPREADING,
    assign: Assign[object] = longest_first,
) -> Iterator[Cluster]:
    """Workers `w0`, `w1` ... over the same model."""
    with ExitStack() as stack:
        # nobody gives signs of life here
        members_of = Membership(silent_after_s=float("inf"))
        router = Router(costs, assign=assign, members=members_of)
        members = []
        for number in range(count):
            name = WorkerId(f"w{number}")
            engine = engine_of(family)
            channel = stack.enter_context(PeerChannel(folder, name))
            worker = stack.enter_context(LocalWorker(engine))
            courier = stack.enter_context(
                Courier(
                    channel,
                    name,
                    PeerDesk(worker),
                    digest=payload_digest,
                    compute_fingerprint=engine.describe().settings.compute_fingerprint,
                    device=torch.device("cpu"),
                )
            )
            fetcher = PeerFetcher(courier, worker)
            worker.call(lambda engine, fetcher=fetcher: engine.connect(fetcher))
            router.join(name, LocalPort(worker))
            tell = partial(router.entries_changed, name)
            worker.call(lambda engine, name=name, tell=tell: engine.watch_entries(name, tell))
            members.append(Member(name, engine, worker, courier))
        yield Cluster(router, tuple(members))


def alone(prompt: SegmentedPrompt, family: str = "gated_delta_rule", **fields: object) -> list[int]:
    """The reply of one worker without a router."""
    with LocalWorker(engine_of(family)) as worker:
        message: EngineRequest = request_of(prompt, **fields)
        return token_ids(token_events(worker.submit(message)))
