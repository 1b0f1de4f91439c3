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

    def begin(self, place: Place, worker: WorkerId) -> None:
        """A worker was asked to make it.  The first one stays its maker until that is over."""
        known = self._entry(place)
        if known.maker is None:
            known.maker = worker

    def hold(self, place: Place, worker: WorkerId) -> None:
        """A worker holds it from now on."""
        known = self._entry(place)
        known.holders.add(worker)
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
        self._prune(place, known)

    def delete(self, places: Iterable[Place]) -> None:
        """Nobody holds these any more."""
        for place in places:
            self._known.pop(place, None)

    def lose(self, worker: WorkerId) -> None:
        """A worker is gone with all that it held and made."""
        for place in list(self._known):
            self.drop(place, worker)

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
                self._known.popitem(last=False)
        return known

    def _prune(self, place: Place, known: _Known) -> None:
        if not known.holders and known.maker is None:
            del self._known[place]
