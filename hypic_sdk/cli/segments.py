"""`hypic segments`: what a server has registered, and files put there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hypic_sdk.cli.documents import FileDocument, read_documents
from hypic_sdk.cli.opening import warm
from hypic_sdk.client import Hypic, segment_id
from hypic_sdk.errors import RequestError
from hypic_sdk.wire.limits import MAX_PAGE, MAX_SEGMENTS_PER_CALL
from hypic_sdk.wire.segments import SegmentObject

if TYPE_CHECKING:
    from rich.console import Console

# what else a person may write is an external id
_SEGMENT_ID = re.compile(r"seg_[a-z2-7]{32}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What adding documents comes to: register these, keep those, forget what they replace."""

    new: tuple[FileDocument, ...]
    kept: tuple[SegmentObject, ...]
    replaced: tuple[str, ...]  # segment ids whose file says something else now
    alike: dict[str, str]  # a file whose text another file has, by its name


def every_segment(client: Hypic) -> Iterator[SegmentObject]:
    """What is registered, page by page."""
    after, has_more = None, True
    while has_more:
        page = client.segments.list(after=after, limit=MAX_PAGE)
        yield from page.data
        after, has_more = page.last_id, page.has_more


def plan_adding(documents: Sequence[FileDocument], registered: Sequence[SegmentObject]) -> Plan:
    """Compare files with what is registered, by external id and by the id of their text."""
    by_id = {segment.id: segment for segment in registered}
    by_name = {segment.external_id: segment.id for segment in registered if segment.external_id}
    owners: dict[str, str] = {}
    new, kept, replaced, alike = [], [], [], {}
    for document in documents:
        id_ = segment_id(document.text)
        if id_ in owners:
            alike[document.name] = owners[id_]
            continue
        owners[id_] = document.name
        known = by_id.get(id_)
        if known is not None and known.external_id == document.name:
            kept.append(known)
            continue
        new.append(document)
        replaced.append(by_name.get(document.name, id_))
    gone = {one for one in replaced if one not in owners}
    return Plan(tuple(new), tuple(kept), tuple(sorted(gone)), alike)


def run_add(
    console: Console, client: Hypic, paths: Sequence[Path], *, pattern: str, and_warm: bool
) -> None:
    """Register files, forget the texts that they no longer have, and warm what is there then.

    A second time nothing is registered and nothing computed.
    """
    documents, passed = read_documents(paths, pattern)
    if not documents:
        raise RequestError(f"no documents in {', '.join(map(str, paths))}")
    plan = plan_adding(documents, list(every_segment(client)))
    segments = [*plan.kept, *_register(console, client, plan.new)]
    if plan.replaced:
        client.segments.delete_many(plan.replaced)
    console.print(
        f"{len(plan.new)} registered, {len(plan.kept)} known, {len(plan.replaced)} replaced"
    )
    for name, other in plan.alike.items():
        console.print(f"{name} has the text of {other}", style="dim", markup=False)
    for reason in passed.values():
        console.print(f"passed over: {reason}", style="dim", markup=False)
    if and_warm:
        run_warm(console, client, segments)


def _register(
    console: Console, client: Hypic, documents: Sequence[FileDocument]
) -> list[SegmentObject]:
    items = [{"text": one.text, "external_id": one.name, "title": one.name[-256:]}
             for one in documents]  # fmt: skip
    made: list[SegmentObject] = []
    columns = (TextColumn("registering"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        for at in progress.track(range(0, len(items), MAX_SEGMENTS_PER_CALL)):
            batch = items[at : at + MAX_SEGMENTS_PER_CALL]
            made += client.segments.create_many(batch, replace_external=True)
    return made


def run_warm(console: Console, client: Hypic, segments: Sequence[SegmentObject]) -> None:
    """Put segments into the public pool; say what it took.

    Raises:
        RequestError: there is nothing to warm.
    """
    if not segments:
        raise RequestError("nothing to warm: name segments, or register some")
    job = warm(console, client, segments)
    counts = job.counts
    console.print(
        f"{counts.done} warmed ({job.tokens.computed} tokens computed), {counts.already_warm} warm "
        f"before, {counts.not_kept} too short to be kept, {counts.failed} failed"
    )
    for failure in job.errors[:10]:
        console.print(f"{failure.segment_id}: {failure.code}: {failure.message}", style="red")


def find_all(client: Hypic, names: Sequence[str]) -> list[SegmentObject]:
    """Segments by their ids or external ids.  Raises SegmentNotFound."""
    return [
        client.segments.retrieve(name)
        if _SEGMENT_ID.fullmatch(name)
        else client.segments.find(name)
        for name in names
    ]


def run_list(console: Console, client: Hypic, *, as_json: bool) -> None:
    """Every registered segment and its state."""
    segments = list(every_segment(client))
    if as_json:
        console.print_json(data=[segment.model_dump() for segment in segments])
        return
    states = client.segments.lookup(segments) if segments else {}
    table = Table("id", "external id", "tokens", "state", "tier")
    for segment in segments:
        state = states[segment.id]
        table.add_row(segment.id, segment.external_id or "", str(segment.tokens), state.state,
                      state.tier or "")  # fmt: skip
    console.print(table)
    console.print(f"{len(segments)} segments")


def run_show(console: Console, client: Hypic, name: str) -> None:
    """All that is known about one segment, as JSON."""
    [segment] = find_all(client, [name])
    state = client.segments.lookup([segment])[segment.id]
    console.print_json(data={**segment.model_dump(), **state.model_dump()})


def run_rm(console: Console, client: Hypic, names: Sequence[str]) -> None:
    """Forget segments: their texts, entries, and every chain that contains them."""
    told = client.segments.delete_many(find_all(client, names))
    console.print(f"{sum(one.deleted for one in told)} forgotten")
