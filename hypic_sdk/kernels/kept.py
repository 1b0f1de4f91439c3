"""Tables that all layers of a forward need: made by the first of them, and found by the others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, eq=False, slots=True)
class _Same:
    """Tuples, equal to themselves alone: to compare their items would cost more than a launch."""

    sequences: tuple[Sequence[Any], ...]

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.sequences)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and all(
            one is another for one, another in zip(self.sequences, other.sequences, strict=True)
        )


def kept_for_same(
    *, maxsize: int, num_sequences: int = 1
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate what makes a table of sequences: the same tuples again give the same table.

    Args:
        maxsize: tables that are kept.
        num_sequences: leading arguments that are such sequences; all others are hashable, and all
            are given by position.
    """

    def decorate(make: Callable[P, R]) -> Callable[P, R]:
        @functools.lru_cache(maxsize=maxsize)
        def kept(same: _Same, *rest: Any) -> R:
            return cast("Callable[..., R]", make)(*same.sequences, *rest)

        @functools.wraps(make)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            sequences = cast("tuple[Sequence[Any], ...]", args[:num_sequences])
            # a list may be changed and handed over again
            if kwargs or any(type(one) is not tuple for one in sequences):
                return make(*args, **kwargs)
            return kept(_Same(sequences), *args[num_sequences:])

        return run

    return decorate
