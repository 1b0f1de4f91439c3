"""Who gets in: one request's whole need, granted at once or not at all (design 9).

A request that does not fit waits at the head of the queue.  Later requests may pass a waiting one
that has cold segments to make, if all of theirs are hits, at most `max_overtakes` times; a waiting
request without cold segments is passed by nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch

from hypic_sdk.config import SchedulerConfig
from hypic_sdk.engine.cold_queue import ColdQueue
from hypic_sdk.engine.grammars import GrammarBook
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.plan import AssemblyPlan, Snapshot
from hypic_sdk.engine.request import Grant, Phase, Request
from hypic_sdk.errors import HypicError, PoolExhausted, QueueFull
from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.prompt.segment import BorderKind, SegmentKey
from hypic_sdk.store.entries import ChainEntry, ChainRef, EntrySpec, Need
from hypic_sdk.store.lease import Lease
from hypic_sdk.store.slot_ranges import SlotRanges, split
from hypic_sdk.store.store import Store
from hypic_sdk.transport.messages import MissReason

# chain entries kept inside one prompt besides the leading part's: the end of the prompt, to go on
# from, and the border before it, for a last message that is written anew
MAX_INNER_SNAPSHOTS = 2


@dataclass(frozen=True, slots=True)
class Draft:
    """How a waiting request would be answered if it were admitted now."""

    plan: AssemblyPlan
    chain: ChainEntry | None
    need: Need
    misses: dict[SegmentKey, MissReason]

    @property
    def is_hit(self) -> bool:
        """Whether nothing has to be computed for the pool first."""
        return not self.misses


@dataclass(frozen=True, slots=True)
class Refusal:
    """A waiting request that leaves the queue with an error."""

    request: Request
    error: HypicError


@final
class Admission:
    """The queue of requests that hold nothing yet."""

    def __init__(
        self,
        store: Store,
        cold: ColdQueue,
        config: SchedulerConfig,
        grammars: GrammarBook | None,
    ) -> None:
        self._store = store
        self._cold = cold
        self._config = config
        self._grammars = grammars
        self._waiting: deque[Request] = deque()
        self._compiling: list[Request] = []  # of the waiting, those whose grammar is not ready
        # set when room or entries may have changed: drafts are worth making again
        self.is_stale = True
        self.room_is_wanted = False  # somebody waits for bytes, not only for a place

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def push(self, request: Request) -> None:
        """Queue a request.  Raises QueueFull."""
        if len(self._waiting) >= self._config.max_waiting:
            raise QueueFull(
                f"{len(self._waiting)} requests wait, the limit is {self._config.max_waiting}",
                waiting=len(self._waiting),
                limit=self._config.max_waiting,
            )
        self._waiting.append(request)
        if request.compilation is not None:
            self._compiling.append(request)
        self.is_stale = True

    def remove(self, request: Request) -> None:
        """Take a request out of the queue; whoever stood behind it may fit now."""
        self._waiting.remove(request)
        if request in self._compiling:
            self._compiling.remove(request)
        self.is_stale = True

    def admit(
        self, *, num_active: int, now_s: float, stamp: int
    ) -> tuple[list[Request], list[Refusal]]:
        """Let in all that fit, in order but for overtaking."""
        admitted: list[Request] = []
        refused: list[Refusal] = []
        blocked: list[Request] = []
        self._note_compiled()
        if not self.is_stale:
            return admitted, refused
        self.is_stale = False
        for request in list(self._waiting):
            if request in self._compiling:  # waits for itself, and holds up nobody
                continue
            if request.compilation is not None and request.compilation.error is not None:
                refused.append(Refusal(request, request.compilation.error))
                continue
            num_places = num_active + sum(len(other.replies) for other in admitted)
            if num_places + len(request.replies) > self._config.max_requests:
                break
            if any(other.overtaken >= self._config.max_overtakes for other in blocked):
                break
            try:
                draft, lease = self._try(request, must_be_hit=bool(blocked))
            except PoolExhausted as error:
                refused.append(Refusal(request, error))
                continue
            if lease is not None:
                self._enter(request, draft, lease, now_s=now_s, stamp=stamp)
                admitted.append(request)
                for other in blocked:
                    other.overtaken += 1
                continue
            blocked.append(request)
            if draft.is_hit or len(blocked) >= self._config.max_requests:
                break
        self._drop([*admitted, *(refusal.request for refusal in refused)])
        self.room_is_wanted = bool(blocked)
        return admitted, refused

    def _note_compiled(self) -> None:
        """Grammars that are ready let their requests take part."""
        if self._compiling and self._grammars is not None:
            self._grammars.relieve()
        compiling = [r for r in self._compiling if r.compilation and not r.compilation.is_done]
        self.is_stale |= len(compiling) < len(self._compiling)
        self._compiling = compiling

    @property
    def is_compiling(self) -> bool:
        """Whether somebody waits for nothing but a grammar."""
        return bool(self._compiling)

    def _drop(self, gone: list[Request]) -> None:
        for request in gone:
            self._waiting.remove(request)

    def _try(self, request: Request, *, must_be_hit: bool) -> tuple[Draft, Lease | None]:
        """Ask the store; a chain is used only where it does not make the request too large."""
        draft = self.draft(request, with_chain=True)
        if must_be_hit and not draft.is_hit:
            return draft, None
        try:
            return draft, self._store.admit(draft.need)
        except PoolExhausted:
            if draft.chain is None:
                raise
        draft = self.draft(request, with_chain=False)
        if must_be_hit and not draft.is_hit:
            return draft, None
        return draft, self._store.admit(draft.need)

    def draft(self, request: Request, *, with_chain: bool) -> Draft:
        """Look up chain and entries, and add up what the rest needs."""
        layout = request.layout
        chain = self._longest_chain(request) if with_chain else None
        covered = 0 if chain is None else chain.position
        plan = layout.plan(covered, self._snapshots(request, covered))
        hits, misses, specs = self._sort_keys(request, plan)
        kv_tokens = request.num_prompt_tokens - covered
        kv_tokens += len(request.replies) * request.reply_kv_tokens
        need = Need(
            entries=tuple(hits),
            new_entries=tuple(specs),
            chain=None if chain is None else ChainRef(request.message.namespace, chain.digest),
            state_rows=len(request.replies),
            kv_tokens=kv_tokens,
        )
        return Draft(plan, chain, need, misses)

    def _longest_chain(self, request: Request) -> ChainEntry | None:
        if not request.uses_chains:
            return None
        namespace = request.message.namespace
        positions = request.layout.chain_positions(self._store.chain_positions(namespace))
        digests = request.layout.digests(positions)
        return self._store.longest_chain(namespace, digests.values())

    def _snapshots(self, request: Request, covered: int) -> dict[int, Snapshot]:
        """Borders behind the chain at which a chain entry is wanted and not held yet."""
        if not request.uses_chains:
            return {}
        later = [b for b in request.layout.prompt.borders if b.position > covered]
        leading = [b for b in later if b.kind is BorderKind.LEADING]
        others = [b for b in later if b.kind is not BorderKind.LEADING]
        wanted = {b.position: b.kind for b in (*leading, *others[-MAX_INNER_SNAPSHOTS:])}
        digests = request.layout.digests(sorted(wanted))
        return {p: Snapshot(p, wanted[p], digest) for p, digest in digests.items()}

    def _sort_keys(
        self, request: Request, plan: AssemblyPlan
    ) -> tuple[list[SegmentKey], dict[SegmentKey, MissReason], list[EntrySpec]]:
        """Keys that are held; why the others are not; entries that nobody makes yet."""
        hits: list[SegmentKey] = []
        misses: dict[SegmentKey, MissReason] = {}
        specs: list[EntrySpec] = []
        for gap in {gap.key: gap for gap in plan.gaps}.values():
            tokens = request.layout.gap_tokens[gap.key]
            if self._store.probe(gap.key, tokens):
                hits.append(gap.key)
                continue
            if self._cold.job_of(gap.key) is not None:
                misses[gap.key] = MissReason.IN_FLIGHT
            else:
                evicted = self._store.was_evicted(gap.key)
                misses[gap.key] = MissReason.EVICTED if evicted else MissReason.NEVER_WARMED
                namespace = request.message.namespace
                spec = EntrySpec(gap.key, gap.entry_tokens, gap.entry_seam, namespace, tokens)
                specs.append(spec)
        return hits, misses, specs

    def _enter(
        self, request: Request, draft: Draft, lease: Lease, *, now_s: float, stamp: int
    ) -> None:
        """Turn the lease into a grant; begin or join the cold jobs."""
        layout, chain = request.layout, draft.chain
        part_of = {gap.key: layout.entry_part(gap) for gap in draft.plan.gaps}
        own = [spec.key for spec in draft.need.new_entries]
        for key in own:
            self._cold.add(part_of[key], lease.detach(key), stamp)
        for key in draft.misses:
            job = self._cold.job_of(key)
            assert job is not None, "a missing entry is made by somebody"
            job.requests.append(request)
        _place_replies(request, lease, chain, self._store.slabs.states.device)
        if request.compilation is not None and self._grammars is not None:
            stops = request.message.sampling.stop_token_ids
            for reply in request.replies:
                reply.grammar = self._grammars.start(request.compilation, stops)
        first = request.replies[0]
        request.grant = Grant(
            lease=lease,
            plan=draft.plan,
            kv=first.kv,
            state_slot=first.state_slot,
            load_slot=NO_SLOT if chain is None else chain.state_slot,
            misses=draft.misses,
            pending=set(draft.misses),
            own_jobs=frozenset(own),
        )
        request.position = draft.plan.chain_tokens
        request.phase = Phase.ASSEMBLING
        request.clock.admitted_s = now_s
        request.stamp = stamp

    def overdue(self, now_s: float, *, num_active: int) -> list[Refusal]:
        """Requests that waited too long for room or a place; they stay queued until removed."""
        limit_s = self._config.admission_timeout_s
        return [
            Refusal(
                request,
                self._no_room(request) if self.room_is_wanted else self._no_place(num_active),
            )
            for request in self._waiting
            if now_s - request.clock.submitted_s > limit_s
        ]

    def _no_place(self, num_active: int) -> QueueFull:
        limit, limit_s = self._config.max_requests, self._config.admission_timeout_s
        return QueueFull(
            f"not begun within {limit_s:g} s: {num_active} requests run, max_requests is {limit}; "
            "try again later",
            active=num_active,
            limit=limit,
        )

    def _no_room(self, request: Request) -> PoolExhausted:
        return self._store.no_room(
            self.draft(request, with_chain=True).need,
            f"no room for the request within {self._config.admission_timeout_s:g} s",
            instead=(
                f"let fewer requests run at once (max_requests, now {self._config.max_requests}), "
                "or try again later"
            ),
        )


def _place_replies(
    request: Request, lease: Lease, chain: ChainEntry | None, device: torch.device
) -> None:
    """Give every reply a state row and a KV table: the prompt's slots once, its own behind them."""
    covered: SlotRanges = () if chain is None else chain.slot_ranges
    num_shared = request.num_prompt_tokens - (0 if chain is None else chain.position)
    for reply in request.replies:
        num_tokens = request.reply_kv_tokens + (num_shared if reply.index == 0 else 0)
        slots = (*covered, *lease.take_kv_ranges(num_tokens))
        reply.settle(lease.take_state_row(), KvTable(slots, device))
        if reply.index == 0 and slots:
            covered, _ = split(slots, request.num_prompt_tokens)
