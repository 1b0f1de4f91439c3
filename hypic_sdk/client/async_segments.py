"""Registered segments and warm jobs of a server, from an event loop."""

from __future__ import annotations

import asyncio
import builtins
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, final
from urllib.parse import quote

from pydantic import TypeAdapter

from hypic_sdk.client.async_warm_job import AsyncWarmJob
from hypic_sdk.client.connection import Connection
from hypic_sdk.client.protocol import Call, get, ids, parsed, post, segment_path
from hypic_sdk.errors import from_payload
from hypic_sdk.wire.limits import MAX_SEGMENTS_PER_CALL
from hypic_sdk.wire.segment_page import AsyncSegmentPage, ComingPage
from hypic_sdk.wire.segment_shorthand import (
    raise_failure,
    register_request,
    segment_items,
    segment_update,
    selection,
    warm_request,
)
from hypic_sdk.wire.segments import (
    DeletedSegment,
    DeletedSegments,
    MetadataValue,
    RegisterReply,
    SegmentList,
    SegmentObject,
    SegmentState,
    WarmJobList,
    WarmJobObject,
)
from hypic_sdk.wire.shorthand import SegmentRef

Warm = Literal["none", "async", "wait"]
WarmPriority = Literal["background", "normal"]

_MAX_CALL_CHARS = 8 << 20  # texts of one registration together
_MAX_CALLS = 4  # registrations on their way at once
_STATES: TypeAdapter[dict[str, SegmentState]] = TypeAdapter(dict[str, SegmentState])


@final
class AsyncSegments:
    """`create`, `create_many`, `retrieve`, `find`, `list`, `lookup`, `update`, `pin`, `delete`."""

    def __init__(self, connection: Connection) -> None:
        self.warm = AsyncWarm(connection)
        self._connection = connection

    async def create(
        self,
        text: str,
        *,
        external_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
        ttl: int | str | None = None,
        priority: int | None = None,
        replace_external: bool = False,
        warm: Warm = "none",
    ) -> SegmentObject:
        """Register one text; again, it is the same segment.

        Args:
            ttl: how long it is kept, seconds or a text like `12h`; "never" takes an end back.
            priority: 0 to 99: entries of lower priority go first when room is needed.
            warm: also put it into the public pool: in the background, or before this returns.
        """
        item = {
            "text": text,
            "external_id": external_id,
            "title": title,
            "metadata": metadata,
            "ttl": ttl,
            "priority": priority,
        }
        [segment] = await self.create_many([item], replace_external=replace_external, warm=warm)
        return segment

    async def create_many(
        self,
        texts: Iterable[str | Mapping[str, Any]],
        *,
        replace_external: bool = False,
        warm: Warm = "none",
    ) -> tuple[SegmentObject, ...]:
        """Register texts in order: strings, or items of the arguments of `create`.

        Raises:
            RequestError, PoolExhausted: of the first that can not be registered; the others are.
            HypicError: with `warm="wait"`, why the first that is not warm is not; all are
                registered.
        """
        items = [*segment_items(texts)]
        gate = asyncio.Semaphore(_MAX_CALLS)

        async def register(batch: builtins.list[dict[str, Any]]) -> builtins.list[SegmentObject]:
            async with gate:
                return await self._register(batch, replace_external)

        done = await asyncio.gather(*map(register, _batches(items)), return_exceptions=True)
        segments = tuple(segment for batch in map(_raised, done) for segment in batch)
        if segments and warm != "none":
            job = await self.warm.create(segments)
            if warm == "wait":
                raise_failure(await job.wait())
        return segments

    async def _register(
        self, batch: builtins.list[dict[str, Any]], replace_external: bool
    ) -> builtins.list[SegmentObject]:
        request = register_request(batch, replace_external=replace_external)
        call = post("/v1/segments", request.model_dump(exclude_unset=True))
        reply = parsed(RegisterReply, await self._connection.send(call))
        if reply.errors:
            raise from_payload(reply.errors[0].model_dump())
        return reply.data

    async def retrieve(self, segment: SegmentRef) -> SegmentObject:
        """One segment by its id.  Raises SegmentNotFound."""
        return parsed(SegmentObject, await self._connection.send(get(segment_path(segment))))

    async def find(self, external_id: str) -> SegmentObject:
        """One segment by the caller's own id.  Raises SegmentNotFound."""
        call = get("/v1/segments", external_id=external_id)
        [segment] = parsed(SegmentList, await self._connection.send(call)).data
        return segment

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        metadata: Mapping[str, MetadataValue] | None = None,
    ) -> ComingPage:
        """A page of the registered segments, oldest first, to be awaited; or all, by `async for`.

        Args:
            limit: segments of one page.
            metadata: those whose metadata say all of this.
        """
        return ComingPage(partial(self._page, after, limit=limit, metadata=metadata))

    async def _page(
        self,
        after: str | None,
        *,
        limit: int,
        metadata: Mapping[str, MetadataValue] | None,
    ) -> AsyncSegmentPage:
        says = None if metadata is None else json.dumps(dict(metadata))
        call = get("/v1/segments", after=after, limit=limit, metadata=says)
        found = parsed(SegmentList, await self._connection.send(call))
        return AsyncSegmentPage(found, partial(self._page, limit=limit, metadata=metadata))

    async def lookup(self, segments: Iterable[SegmentRef]) -> dict[str, SegmentState]:
        """Which are registered, and which are warm now; nothing is touched."""
        body = await self._connection.send(ids("/v1/segments/lookup", segments))
        return _STATES.validate_json(body)

    async def update(
        self,
        segment: SegmentRef,
        *,
        external_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
        ttl: int | str | None = None,
        priority: int | None = None,
        replace_external: bool = False,
    ) -> SegmentObject:
        """Say something else about a segment; what is left out stays as it is."""
        values = {
            "external_id": external_id,
            "title": title,
            "metadata": metadata,
            "ttl": ttl,
            "priority": priority,
            "replace_external": replace_external,
        }
        return await self._patch(segment, values)

    async def pin(self, segment: SegmentRef, *, ttl: int | str | None = None) -> SegmentObject:
        """Keep a segment's entry from eviction, for some time or until it is unpinned.

        Raises:
            PinBudgetExhausted: as much is pinned as may be.
        """
        return await self._patch(segment, {"pin": {"ttl": ttl}})

    async def unpin(self, segment: SegmentRef) -> SegmentObject:
        """Let a segment's entry be evicted again."""
        return await self._patch(segment, {"pin": False})

    async def _patch(self, segment: SegmentRef, values: Mapping[str, Any]) -> SegmentObject:
        update = segment_update(values)
        body = json.dumps(update.model_dump(exclude_unset=True)).encode()
        call = Call("PATCH", segment_path(segment), body)
        return parsed(SegmentObject, await self._connection.send(call))

    async def delete(self, segment: SegmentRef) -> DeletedSegment:
        """Forget a segment: its text, its entry, every chain that contains it."""
        # a second time it is unknown, which would look like a mistake of the caller's
        call = Call("DELETE", segment_path(segment), repeatable=False)
        return parsed(DeletedSegment, await self._connection.send(call))

    async def delete_many(
        self,
        segments: Iterable[SegmentRef] | None = None,
        *,
        external_ids: Iterable[str] | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
    ) -> builtins.list[DeletedSegment]:
        """Forget several, named in one of three ways; unknown ones are told as not deleted."""
        chosen = selection(segments, external_ids, metadata)
        call = post("/v1/segments/delete", chosen.model_dump(exclude_unset=True))
        return parsed(DeletedSegments, await self._connection.send(call)).data


@final
class AsyncWarm:
    """Warm jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self, segments: Iterable[SegmentRef], *, priority: WarmPriority = "normal"
    ) -> AsyncWarmJob:
        """Put registered segments into the public pool, in the background.

        Args:
            priority: a "background" job yields to requests.
        """
        request = warm_request(segments, priority=priority)
        call = post("/v1/segments/warm", request.model_dump(exclude_unset=True))
        body = await self._connection.send(call)
        return AsyncWarmJob(self._connection, parsed(WarmJobObject, body))

    async def retrieve(self, job_id: str) -> AsyncWarmJob:
        """A job that was begun before.  Raises JobNotFound."""
        body = await self._connection.send(get(f"/v1/segments/warm/{quote(job_id, safe='')}"))
        return AsyncWarmJob(self._connection, parsed(WarmJobObject, body))

    async def list(self) -> builtins.list[WarmJobObject]:
        """The jobs that are readable, newest first."""
        return parsed(WarmJobList, await self._connection.send(get("/v1/segments/warm"))).data


def _raised(
    result: list[SegmentObject] | BaseException,
) -> list[SegmentObject]:
    """What was registered; raises what went wrong."""
    if isinstance(result, BaseException):
        raise result
    return result


def _batches(items: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """In order, each within what one call may have."""
    batch: list[dict[str, Any]] = []
    num_chars = 0
    for item in items:
        text = item.get("text")
        size = len(text) if isinstance(text, str) else 0
        if batch and (len(batch) == MAX_SEGMENTS_PER_CALL or num_chars + size > _MAX_CALL_CHARS):
            yield batch
            batch, num_chars = [], 0
        batch.append(item)
        num_chars += size
    if batch:
        yield batch
