"""Registered segments of one namespace: their texts, and what is warm of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, final

from hypic_sdk.errors import HypicError, SegmentNotFound
from hypic_sdk.prompt.catalog import (
    NEVER,
    CatalogUsage,
    Metadata,
    NewSegment,
    RegisteredSegment,
    SegmentCatalog,
)
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service import keeping
from hypic_sdk.service.ids import new_id
from hypic_sdk.service.segment_keeper import SegmentKeeper, find_all
from hypic_sdk.service.token_memo import TokenMemo
from hypic_sdk.service.warm_job import WarmJob
from hypic_sdk.service.worker_port import WorkerPort
from hypic_sdk.transport.control import EntryLook, Held
from hypic_sdk.transport.messages import WarmRequest
from hypic_sdk.wire.segments import (
    DeletedSegment,
    DeletedSegments,
    NewSegmentItem,
    Pin,
    RegisterFailure,
    RegisterReply,
    RegisterRequest,
    Retention,
    SegmentIds,
    SegmentList,
    SegmentObject,
    SegmentSelection,
    SegmentState,
    SegmentUpdate,
    WarmCreate,
)

_DELETE_PAGE = 1000  # segments of a filter that are deleted at a time

State = Literal["unknown", "registered", "warming", "warm", "evicted", "not_kept"]
_STATES: Mapping[Held, State] = MappingProxyType(
    {
        Held.NOT_KEPT: "not_kept",
        Held.COLD: "registered",
        Held.EVICTED: "evicted",
        Held.FILLING: "warming",
        Held.WARM: "warm",
    }
)


@final
class SegmentService:
    """What a `Service` does with registered segments; takes and gives wire models.

    Blocking only while it waits for the worker; safe to call from several threads.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        memo: TokenMemo,
        catalog: SegmentCatalog,
        worker: WorkerPort,
        *,
        namespace: str = "",
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`memo`: token ids of texts, shared with the prompts that name these segments."""
        self.keeper = SegmentKeeper(
            tokenizer, memo, catalog, worker, namespace=namespace, now_s=now_s
        )
        self._catalog = catalog
        self._worker = worker
        self._namespace = namespace
        self._now_s = now_s

    def register(self, request: RegisterRequest) -> list[SegmentObject]:
        """Register texts, in order; those that were known come back as they are.

        Raises:
            RequestError: of the first text that can not be registered; those before it are.
        """
        made: list[tuple[RegisteredSegment, bool]] = []
        try:
            for item in request.segments:
                made.append(self._register(item, request))
        finally:
            self._tell_priorities(request, made)
        return [self._object(segment, created) for segment, created in made]

    def register_each(self, request: RegisterRequest) -> RegisterReply:
        """Register texts, in order; what is wrong with one is told beside those that are right."""
        made: list[tuple[RegisteredSegment, bool]] = []
        errors: list[RegisterFailure] = []
        for index, item in enumerate(request.segments):
            try:
                made.append(self._register(item, request))
            except HypicError as error:
                errors.append(
                    RegisterFailure(
                        index=index,
                        code=error.code,
                        message=error.message,
                        details=error.details,
                    )
                )
        self._tell_priorities(request, made)
        data = [self._object(segment, created) for segment, created in made]
        return RegisterReply(data=data, errors=tuple(errors))

    def _register(
        self, item: NewSegmentItem, request: RegisterRequest
    ) -> tuple[RegisteredSegment, bool]:
        new = _said_of(item.text, item)
        segment, created = self._catalog.register(new, replace_external=request.replace_external)
        if item.pin is not None:
            self._pin([segment], item.pin)
            segment = self._catalog.get(segment.id) or segment
        return segment, created

    def _tell_priorities(
        self, request: RegisterRequest, made: Sequence[tuple[RegisteredSegment, bool]]
    ) -> None:
        if any(item.retention is not None for item in request.segments):
            self.keeper.tell_priorities([segment for segment, _ in made])

    def update(self, id_: str, change: SegmentUpdate) -> SegmentObject:
        """Say something else about a registered text.

        Raises:
            SegmentNotFound: there is none.
            ExternalIdConflict: an external id that names another text.
            PinBudgetExhausted: a pin that does not fit; what else was said holds.
        """
        new = _said_of(self._find(id_).text, change)
        segment, created = self._catalog.register(new, replace_external=change.replace_external)
        if created:  # it was deleted meanwhile, and must not come back by this
            self.keeper.forget([segment])
            raise _unknown(id_)
        if change.retention is not None:
            self.keeper.tell_priorities([segment])
        self._pin([segment], change.pin)
        return self._object(self._catalog.get(id_) or segment)

    def _pin(self, segments: Sequence[RegisteredSegment], pin: Pin | None) -> None:
        if pin is False:
            self.keeper.unpin(segments)
        elif pin is not None:
            self.keeper.pin(segments, None if pin is True else _seconds(pin.ttl))

    def retrieve(self, id_: str) -> SegmentObject:
        """One registered segment.  Raises SegmentNotFound."""
        return self._object(self._find(id_))

    def titles(self, ids: Iterable[str]) -> dict[str, str]:
        """Titles by id, of those that are registered and have one."""
        found = (self._catalog.get(id_) for id_ in ids)
        return {one.id: one.title for one in found if one is not None and one.title is not None}

    def find_external(self, external_id: str) -> SegmentObject:
        """The segment of a caller's own id.  Raises SegmentNotFound."""
        found = self._catalog.find_external(external_id)
        if found is None:
            raise SegmentNotFound(
                f"no segment has the external id {external_id!r}", external_id=external_id
            )
        return self._object(found)

    def list_segments(
        self, *, after: str | None = None, limit: int = 100, says: Metadata | None = None
    ) -> SegmentList:
        """A page of the registered segments, oldest first; those whose metadata say all of `says`.

        Raises:
            RequestError: `after` is the id of none.
        """
        page = self._catalog.page(after=after, limit=limit, says=says)
        data = [self._object(segment) for segment in page.segments]
        return SegmentList(data=data, has_more=page.has_more, last_id=data[-1].id if data else None)

    def lookup(self, request: SegmentIds) -> dict[str, SegmentState]:
        """Which segments are registered, and what there is of them; nothing is touched."""
        found = {id_: self._catalog.get(id_) for id_ in request.segment_ids}
        known = [segment for segment in found.values() if segment is not None]
        parts = [self.keeper.part(segment) for segment in known]
        looks = keeping.look(self._worker, parts, self._namespace)
        states: dict[str, SegmentState] = {
            segment.id: _state(segment, look) for segment, look in zip(known, looks, strict=True)
        }
        unknown = SegmentState(state="unknown")
        return {id_: states.get(id_, unknown) for id_ in found}

    def delete(self, id_: str) -> DeletedSegment:
        """Forget a segment: its text, its entry, and every chain that contains it.

        Raises:
            SegmentNotFound: there is none.
        """
        segment = self._find(id_)
        gone = self.keeper.forget([segment])
        return _deleted(segment, gone)

    def delete_many(self, selection: SegmentSelection | SegmentIds) -> DeletedSegments:
        """Forget several; ids that name nothing are told as not deleted."""
        if isinstance(selection, SegmentSelection):
            if selection.metadata is not None:
                return self._delete_those_that_say(selection.metadata)
            if selection.external_ids is not None:
                return self._delete_external(dict.fromkeys(selection.external_ids))
        ids = dict.fromkeys(selection.segment_ids or ())
        found = [self._catalog.get(id_) for id_ in ids]
        gone = self.keeper.forget([one for one in found if one is not None])
        return DeletedSegments(
            data=[
                DeletedSegment(id=id_, deleted=False)
                if segment is None
                else _deleted(segment, gone)
                for id_, segment in zip(ids, found, strict=True)
            ]
        )

    def _delete_external(self, external_ids: Mapping[str, None]) -> DeletedSegments:
        found = {name: self._catalog.find_external(name) for name in external_ids}
        gone = self.keeper.forget([one for one in found.values() if one is not None])
        return DeletedSegments(
            data=[
                DeletedSegment(id=None, external_id=name, deleted=False)
                if segment is None
                else _deleted(segment, gone)
                for name, segment in found.items()
            ]
        )

    def _delete_those_that_say(self, metadata: Metadata) -> DeletedSegments:
        data: list[DeletedSegment] = []
        while found := self._catalog.page(limit=_DELETE_PAGE, says=metadata).segments:
            gone = self.keeper.forget(found)
            data += [_deleted(one, gone) for one in found if one.id in gone]
        return DeletedSegments(data=data)

    def warm(self, request: SegmentIds) -> WarmJob:
        """Put registered segments into the public pool, in the background.

        Raises:
            SegmentNotFound: naming all that are not registered.
            QuotaExceeded: they take more than the tenant may have in the cache.
            PinBudgetExhausted: they are to be pinned, and do not fit.
        """
        segments = find_all(self._catalog, request.segment_ids)
        self.keeper.check_cached_bytes(segments)
        background = False
        if isinstance(request, WarmCreate):
            background = request.priority == "background"
            self._pin(segments, request.pin)
        parts = tuple(self.keeper.part(segment) for segment in segments)
        message = WarmRequest(new_id("warm"), parts, self._namespace, background)
        return WarmJob(message, self._worker, created_at=int(self._now_s()))

    def usage(self) -> CatalogUsage:
        """How much is registered."""
        return self._catalog.usage()

    def _find(self, id_: str) -> RegisteredSegment:
        [segment] = find_all(self._catalog, [id_])
        return segment

    def _object(self, segment: RegisteredSegment, created: bool | None = None) -> SegmentObject:
        return SegmentObject(
            id=segment.id,
            external_id=segment.external_id,
            title=segment.title,
            metadata=dict(segment.metadata),
            tokens=segment.num_tokens,
            created_at=segment.created_at,
            expires_at=segment.expires_at,
            retention=Retention(priority=segment.priority),
            pinned=segment.is_pinned,
            pin_expires_at=segment.pin_expires_at,
            created=created,
        )


def _said_of(text: str, said: NewSegmentItem | SegmentUpdate) -> NewSegment:
    return NewSegment(
        text,
        said.external_id,
        said.title,
        said.metadata,
        ttl_s=NEVER if said.ttl == "never" else _seconds(said.ttl),
        priority=None if said.retention is None else said.retention.priority,
    )


def _seconds(duration: int | str | None) -> int | None:
    """A checked duration: the wire model has made seconds of it."""
    assert not isinstance(duration, str), "a duration is in seconds by now"
    return duration


def _state(segment: RegisteredSegment, look: EntryLook) -> SegmentState:
    return SegmentState(
        state=_STATES[look.held],
        tokens=segment.num_tokens,
        tier="gpu" if look.held is Held.WARM else None,
        bytes=look.num_bytes,
        pinned=segment.is_pinned,
    )


def _deleted(segment: RegisteredSegment, gone: set[str]) -> DeletedSegment:
    return DeletedSegment(
        id=segment.id, external_id=segment.external_id, deleted=segment.id in gone
    )


def _unknown(id_: str) -> SegmentNotFound:
    return SegmentNotFound(f"not registered: {id_}", segment_ids=[id_], num_missing=1)
