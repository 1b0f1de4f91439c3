"""Least recently used: the entry whose last use ended longest ago goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, final

from hypic_sdk.store.eviction import EvictableT


@final
class Lru(Generic[EvictableT]):
    """The default policy; a use ends when the last pin goes."""

    def __init__(self) -> None:
        self._idle: OrderedDict[EvictableT, None] = OrderedDict()

    def add(self, entry: EvictableT) -> None:
        """The entry is now the most recently used one."""
        assert entry not in self._idle, "entry is idle already"
        self._idle[entry] = None

    def remove(self, entry: EvictableT) -> None:
        """Forget the entry until it is added again."""
        del self._idle[entry]

    def order(self) -> Sequence[EvictableT]:
        """Idle entries, the least recently used in front."""
        return list(self._idle)
