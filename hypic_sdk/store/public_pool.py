"""Segment entries by key, and those that are being made."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import final

from hypic_sdk.prompt.segment import SegmentKey
from hypic_sdk.store.entries import Removal, SegmentEntry
from hypic_sdk.store.filling import Filling
from hypic_sdk.store.residents import Resident, Residents

logger = logging.getLogger(__name__)

REMEMBERED_EVICTIONS = 16384


@final
class PublicPool:
    """The index of segment entries; shared by all requests, immutable once put."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self.held: dict[SegmentKey, Resident[SegmentEntry]] = {}
        # every open filling; `findable` ones are what others wait for
        self.fillings: dict[Filling, None] = {}
        self._filling_by_key: dict[SegmentKey, Filling] = {}
        self._tokens: dict[SegmentKey, bytes] = {}
        self._evicted: OrderedDict[SegmentKey, None] = OrderedDict()

    def find(self, key: SegmentKey) -> Resident[SegmentEntry] | None:
        """The committed entry under this key."""
        return self.held.get(key)

    def matches(self, key: SegmentKey, tokens: bytes) -> bool:
        """Whether the held entry is of these tokens, as far as both are known."""
        known = self._tokens.get(key, b"")
        return not known or not tokens or known == tokens

    def is_filling(self, key: SegmentKey) -> bool:
        """Whether an entry of this key will be found once it is committed."""
        return key in self._filling_by_key

    def was_evicted(self, key: SegmentKey) -> bool:
        """Whether the last entry of this key went for lack of room."""
        return key in self._evicted

    def open(self, filling: Filling) -> None:
        """Somebody begins to write an entry."""
        assert filling.spec.key not in self.held, "entry is held already"
        assert filling.spec.key not in self._filling_by_key, "entry is in filling already"
        self.fillings[filling] = None
        self._filling_by_key[filling.spec.key] = filling

    def end(self, filling: Filling) -> None:
        """The writing has ended, one way or the other."""
        assert filling.is_open, "filling has ended already"
        filling.is_open = False
        del self.fillings[filling]
        if filling.findable:
            del self._filling_by_key[filling.spec.key]

    def put(self, resident: Resident[SegmentEntry], tokens: bytes) -> None:
        """Index a committed entry."""
        key = resident.entry.key
        self.held[key] = resident
        if tokens:
            self._tokens[key] = tokens
        self._evicted.pop(key, None)

    def forget(self, key: SegmentKey, *, evicted: bool) -> None:
        """Take an entry out of the index."""
        del self.held[key]
        self._tokens.pop(key, None)
        if evicted:
            self._evicted[key] = None
            if len(self._evicted) > REMEMBERED_EVICTIONS:
                self._evicted.popitem(last=False)

    def delete(self, key: SegmentKey) -> Removal:
        """Remove the entry and the filling of a key, and the memory that there was one."""
        self._evicted.pop(key, None)
        removal = Removal()
        resident = self.held.get(key)
        if resident is not None:
            self.forget(key, evicted=False)
            gone = self._residents.remove(resident)
            removal += Removal(removed=int(gone), deferred=int(not gone))
        filling = self._filling_by_key.pop(key, None)
        if filling is not None:
            filling.findable = False
            removal += Removal(deferred=1)
        return removal

    def keys(self, namespace: str | None) -> list[SegmentKey]:
        """Keys held or in filling in a namespace (none: in all)."""
        held = [(key, item.namespace) for key, item in self.held.items()]
        filling = [(key, item.spec.namespace) for key, item in self._filling_by_key.items()]
        return [key for key, owner in held + filling if namespace is None or owner == namespace]

    def forget_evictions(self) -> None:
        """Forget which entries were dropped for room."""
        self._evicted.clear()
