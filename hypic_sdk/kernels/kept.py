"""Tables that all layers of a forward need: made by the first of them, and found by the others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def kept_for_same(
    *, maxsize: int, num_sequences: int = 1
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate what makes a table of sequences: the same tuples again give the same table.

    Args:
        maxsize: tables that are kept; the oldest goes first.
        num_sequences: leading arguments that are such sequences; all others are hashable, and all
            are given by position.
    """

    def decorate(make: Callable[P, R]) -> Callable[P, R]:
        # tuples go by their places in memory, which nobody else gets while they stand here: to
        # compare their items would cost more than a launch
        kept: dict[tuple[Any, ...], tuple[tuple[Any, ...], R]] = {}

        @functools.wraps(make)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            key = (*map(id, args[:num_sequences]), *args[num_sequences:])
            found = None if kwargs else kept.get(key)
            if found is not None:
                return found[1]
            made = make(*args, **kwargs)
            # a list may be changed and handed over again
            if not kwargs and all(type(one) is tuple for one in args[:num_sequences]):
                for oldest in list(kept)[: len(kept) - maxsize + 1]:
                    kept.pop(oldest, None)
                kept[key] = (args[:num_sequences], made)
            return made

        return run

    return decorate
