"""Whole texts into groups, each within what one prompt may have."""

from __future__ import annotations

from collections.abc import Sequence


def packed(sizes: Sequence[int], limit: int) -> list[range]:
    """Ranges of places that follow each other, as few as there can be in this order.

    Each has at most `limit` in sum; what is over it on its own stands alone, whole.
    """
    groups: list[range] = []
    start, total = 0, 0
    for place, size in enumerate(sizes):
        if place > start and total + size > limit:
            groups.append(range(start, place))
            start, total = place, 0
        total += size
    if sizes:
        groups.append(range(start, len(sizes)))
    return groups
