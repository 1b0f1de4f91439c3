"""Which idle entry goes first when room is needed: the port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Evictable(Protocol):
    """What a policy may know of an entry.  Compared by identity."""

    @property
    def num_bytes(self) -> int:
        """Bytes it holds, shared KV slots counted in full."""
        ...

    @property
    def cost_ms(self) -> float:
        """What making it again would take; 0 where unknown."""
        ...


EvictableT = TypeVar("EvictableT", bound=Evictable)


class EvictionPolicy(Protocol[EvictableT]):
    """An order over idle entries.

    An entry is known from the moment it becomes idle until it is pinned, evicted or deleted, so
    each `add` of the same entry is one more use of it.
    """

    def add(self, entry: EvictableT) -> None:
        """The entry has just become idle."""
        ...

    def remove(self, entry: EvictableT) -> None:
        """The entry is idle no more (pinned or gone)."""
        ...

    def order(self) -> Sequence[EvictableT]:
        """All idle entries, the one to be evicted first in front."""
        ...
