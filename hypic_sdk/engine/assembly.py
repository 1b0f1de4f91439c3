"""Walking a plan: which of a request's next runs, gaps and snapshots go into this forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hypic_sdk.engine.batch import AssemblyStep, KeptSnapshot
from hypic_sdk.engine.chain_spec import chain_spec
from hypic_sdk.engine.plan import Gap, LiveRun, Snapshot, Unit
from hypic_sdk.engine.request import Reply, Request
from hypic_sdk.engine.run_table import LiveStep, LiveStretch, SaveState
from hypic_sdk.engine.splice import SpliceGap
from hypic_sdk.prompt.segment import BorderKind, SegmentKey, token_bytes
from hypic_sdk.store.entries import SegmentEntry
from hypic_sdk.store.store import Store

NOT_JOINED: Mapping[SegmentKey, SegmentEntry] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a request's plan goes in one forward."""

    request: Request
    units: Sequence[Unit]
    next_unit: int  # of the plan: the first that does not go
    position: int  # before it
    num_tokens: int  # rows
    joined: Mapping[SegmentKey, SegmentEntry]  # entries that the forward itself completes


def next_run_tokens(request: Request) -> int | None:
    """Rows of the next run that could go now; none while an entry before it is being made."""
    for unit in request.held.plan.units[request.next_unit :]:
        if isinstance(unit, LiveRun):
            return unit.stop - unit.start
        if isinstance(unit, Gap) and unit.key in request.held.pending:
            return None
    raise AssertionError("a plan ends with a run")


def remaining_tokens(request: Request) -> int:
    """Live tokens that have not gone through the model."""
    units = request.held.plan.units[request.next_unit :]
    return sum(unit.stop - unit.start for unit in units if isinstance(unit, LiveRun))


def reach_of(
    request: Request,
    max_tokens: int,
    *,
    must_take: bool = False,
    joined: Mapping[SegmentKey, SegmentEntry] = NOT_JOINED,
) -> Reach | None:
    """As much of the plan as fits `max_tokens` rows; none if that is no run at all.

    Runs are never cut here: their cuts are the plan's.  Gaps that no run follows stay for later.

    Args:
        must_take: the first run goes even if it does not fit.
        joined: of the entries that the request waits for, those that this forward completes.
    """
    first_tokens = next_run_tokens(request)
    if must_take and first_tokens is not None:
        max_tokens = max(max_tokens, first_tokens)
    reach = _walk(request, max_tokens, joined)
    return None if reach.position == request.position else reach


def take_step(reach: Reach) -> AssemblyStep:
    """What the forward does for the request; takes rows for its snapshots."""
    request, next_unit, position = reach.request, reach.next_unit, reach.position
    grant, prompt = request.held, request.layout.prompt
    entries = {**grant.lease.entries, **reach.joined}
    steps: list[LiveStep] = []
    snapshots: list[KeptSnapshot] = []
    for unit in reach.units:
        if isinstance(unit, Snapshot):
            steps += _save(request, unit, snapshots)
        elif isinstance(unit, Gap):
            steps.append(SpliceGap(unit, entries[unit.key]))
        else:
            steps.append(unit)
    is_whole = next_unit == len(grant.plan.units)
    stretch = LiveStretch(
        token_ids=[
            token_id
            for step in steps
            if isinstance(step, LiveRun)
            for token_id in prompt.ids_between(step.start, step.stop)
        ],
        steps=steps,
        load_slot=grant.load_slot,
        save_slots=[r.state_slot for r in request.replies] if is_whole else [grant.state_slot],
        kv=grant.kv,
        wants_logits=is_whole and request.max_tokens > 0,
    )
    return AssemblyStep(request, stretch, next_unit, position, tuple(snapshots))


def _walk(request: Request, max_tokens: int, joined: Mapping[SegmentKey, SegmentEntry]) -> Reach:
    """The units that can go now."""
    plan, missing = request.held.plan.units, request.held.pending - joined.keys()
    first = stop = request.next_unit
    position, num_tokens = request.position, 0
    for index in range(first, len(plan)):
        unit = plan[index]
        if isinstance(unit, LiveRun):
            if num_tokens + unit.stop - unit.start > max_tokens:
                break
            num_tokens += unit.stop - unit.start
            position, stop = unit.stop, index + 1
        elif isinstance(unit, Gap):
            if unit.key in missing:
                break
        elif stop == index > first:  # right behind a run of this step
            stop = index + 1
    return Reach(request, plan[first:stop], stop, position, num_tokens, joined)


def _save(request: Request, unit: Snapshot, snapshots: list[KeptSnapshot]) -> list[LiveStep]:
    """A row for the snapshot if there is room now; it is not worth waiting for."""
    row = request.held.lease.try_state_row(unit.kind, request.message.session_id)
    if row is None:
        return []
    snapshots.append(KeptSnapshot(unit, row))
    return [SaveState(row)]


def keep_snapshots(store: Store, step: AssemblyStep, are_finite: Sequence[bool]) -> None:
    """The forward went well: what it saved becomes chain entries, where all of it is finite."""
    lease = step.request.held.lease
    for spec, is_finite in zip(step.chain_specs, are_finite, strict=True):
        if not (is_finite and store.put_chain(lease, spec)):
            lease.return_state_row(spec.state_slot)


def keep_reply(store: Store, reply: Reply) -> None:
    """Keep the running state of a reply that ended well, for its session's next turn.

    The reply's last token may never have been fed; the entry ends before it then.
    """
    request = reply.request
    if request.message.session_id is None or not request.uses_chains:
        return
    slabs, row = store.slabs, reply.state_slot
    if not (slabs.states[row].isfinite().all() & slabs.conv_tails[row].isfinite().all()):
        return
    rolling = request.layout.end_digest.copy()
    fed = reply.token_ids[: reply.position - request.num_prompt_tokens]
    rolling.feed_live(token_bytes(fed))
    spec = chain_spec(
        request,
        reply.kv,
        digest=rolling.digest(),
        position=reply.position,
        kind=BorderKind.REPLY,
        state_slot=reply.state_slot,
    )
    store.put_chain(request.held.lease, spec)
