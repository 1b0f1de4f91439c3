"""Which worker holds or makes which segment, as far as is known: a hint, never an authority."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from hypic_sdk.prompt.segment import SegmentId
from hypic_sdk.router.assignment import WorkerId

MAX_PLACES = 1_000_000
"""Segments that the index remembers; the ones that were not asked for the longest go first."""


@dataclass(frozen=True, slots=True)
class Place:
    """One text of one tenant; the same text of another tenant is another place."""

    namespace: str
    segment_id: SegmentId


@dataclass(slots=True)
class _Known:
    holders: set[WorkerId] = field(default_factory=set)
    maker: WorkerId | None = None  # makes it now, for whoever asks


@final
class PlacementIndex:
    """Holders and makers of segments, bounded in size.  Single-threaded."""

    def __init__(self, max_places: int = MAX_PLACES) -> None:
        self._max_places = max_places
        self._known: OrderedDict[Place, _Known] = OrderedDict()
        self._of: dict[WorkerId, set[Place]] = {}  # where a worker is named, as holder or maker

    def __len__(self) -> int:
        return len(self._known)

    def holders(self, place: Place) -> frozenset[WorkerId]:
        """Workers that are thought to hold it."""
        known = self._touch(place)
        return frozenset() if known is None else frozenset(known.holders)

    def maker(self, place: Place) -> WorkerId | None:
        """The worker that is thought to make it now."""
        known = self._touch(place)
        return None if known is None else known.maker

    def num_places(self, worker: WorkerId) -> int:
        """Segments that a worker is thought to hold or to make."""
        return len(self._of.get(worker, ()))

    def begin(self, place: Place, worker: WorkerId) -> None:
        """A worker was asked to make it.  The first one stays its maker until that is over."""
        known = self._entry(place)
        if known.maker is None:
            known.maker = worker
            self._of.setdefault(worker, set()).add(place)

    def hold(self, place: Place, worker: WorkerId) -> None:
        """A worker holds it from now on."""
        known = self._entry(place)
        known.holders.add(worker)
        self._of.setdefault(worker, set()).add(place)
        if known.maker == worker:
            known.maker = None

    def drop(self, place: Place, worker: WorkerId) -> None:
        """A worker holds it no more, or will not make it."""
        known = self._known.get(place)
        if known is None:
            return
        known.holders.discard(worker)
        if known.maker == worker:
            known.maker = None
        self._of.get(worker, set()).discard(place)
        if not known.holders and known.maker is None:
            del self._known[place]

    def give_up(self, place: Place, worker: WorkerId) -> None:
        """A worker may not make it after all; should it hold it, that stays."""
        known = self._known.get(place)
        if known is None or known.maker != worker:
            return
        known.maker = None
        if worker not in known.holders:
            self.drop(place, worker)

    def delete(self, places: Iterable[Place]) -> None:
        """Nobody holds these any more."""
        for place in places:
            self._forget(place)

    def clear(self, namespace: str) -> None:
        """Nobody holds anything of a namespace any more."""
        self.delete([place for place in self._known if place.namespace == namespace])

    def lose(self, worker: WorkerId) -> None:
        """A worker is gone with all that it held and made."""
        for place in list(self._of.get(worker, ())):
            self.drop(place, worker)
        self._of.pop(worker, None)

    def _touch(self, place: Place) -> _Known | None:
        known = self._known.get(place)
        if known is not None:
            self._known.move_to_end(place)
        return known

    def _entry(self, place: Place) -> _Known:
        known = self._touch(place)
        if known is None:
            known = self._known[place] = _Known()
            while len(self._known) > self._max_places:
                self._forget(next(iter(self._known)))
        return known

    def _forget(self, place: Place) -> None:
        known = self._known.pop(place, None)
        if known is None:
            return
        for worker in known.holders | ({known.maker} if known.maker is not None else set()):
            self._of[worker].discard(place)
