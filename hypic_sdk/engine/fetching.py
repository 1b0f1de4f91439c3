"""Entries that another worker holds or makes: asked for instead of computed (design 10)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, final

import torch

from hypic_sdk.engine.cold_job import ColdJob, Fetch
from hypic_sdk.errors import HypicError, TransferFailed
from hypic_sdk.links.courier import Wanted
from hypic_sdk.links.link_ends import Arrival
from hypic_sdk.store.entry_bytes import unpack_entry
from hypic_sdk.store.slab import Slabs

logger = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 30.0
"""How long an entry of another worker is waited for before it is made here after all."""


class EntryFetcher(Protocol):
    """Asks other workers for entries.  `tell` is called on the engine's thread, between steps."""

    def fetch(self, worker: str, wanted: Wanted, tell: Callable[[Arrival], None]) -> int:
        """Ask; returns a ticket.  `tell` gets exactly one arrival, unless the fetch is dropped."""
        ...

    def drop(self, worker: str, ticket: int) -> None:
        """The entry is not wanted any more."""
        ...


@final
class Fetching:
    """Fetches of one engine's cold jobs.  A job that can not be fetched is computed, as any other.

    Until an engine has a fetcher, hints are not followed.
    """

    def __init__(self, slabs: Slabs) -> None:
        self._slabs = slabs
        self._fetcher: EntryFetcher | None = None
        self._jobs: set[ColdJob] = set()
        self._came: list[tuple[ColdJob, Arrival]] = []

    @property
    def is_waiting(self) -> bool:
        """Whether any entry is on its way."""
        return bool(self._jobs)

    def connect(self, fetcher: EntryFetcher) -> None:
        """Follow hints from now on."""
        self._fetcher = fetcher

    def begin(self, job: ColdJob, worker: str, namespace: str) -> None:
        """Ask a worker for a job's entry instead of computing it."""
        if self._fetcher is None:
            return
        wanted = Wanted(job.part, namespace, job.key, FETCH_TIMEOUT_S)
        # its arrival comes between two steps: not before this returns
        ticket = self._fetcher.fetch(worker, wanted, lambda arrival: self._take(job, arrival))
        self._jobs.add(job)
        job.fetch = Fetch(worker, ticket)

    def drop(self, job: ColdJob) -> None:
        """The job ended otherwise."""
        if job.fetch is not None and self._fetcher is not None:
            self._fetcher.drop(job.fetch.worker, job.fetch.ticket)
        self._end(job)

    def _end(self, job: ColdJob) -> None:
        job.fetch = None
        self._jobs.discard(job)

    def _take(self, job: ColdJob, arrival: Arrival) -> None:
        if job in self._jobs:
            self._came.append((job, arrival))

    def settle(self) -> list[ColdJob]:
        """Write what came into its slots; those jobs are complete, and to be committed.

        A job whose entry did not come is computed here from now on.
        """
        came, self._came = self._came, []
        return [job for job, arrival in came if job in self._jobs and self._write(job, arrival)]

    def _write(self, job: ColdJob, arrival: Arrival) -> bool:
        worker = job.fetch.worker if job.fetch is not None else "another worker"
        self._end(job)
        try:
            if arrival.payload is None:
                raise arrival.error or TransferFailed("nothing came")
            if arrival.payload.is_cuda:  # made on a link's stream, read on this thread's
                arrival.payload.record_stream(torch.cuda.current_stream(arrival.payload.device))
            unpack_entry(self._slabs, job.filling.entry, arrival.payload)
        except HypicError as error:
            logger.warning(
                "a segment of %d tokens is made here: none came from %s: %s",
                job.num_tokens,
                worker,
                error,
            )
            return False
        job.cold_ms = arrival.made_ms
        job.was_fetched = True
        return True
