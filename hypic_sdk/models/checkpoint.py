"""Where the tensors of a checkpoint go in a model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Piece(NamedTuple):
    """Rows of a tensor that lie together in the parameter as well."""

    source: int  # first row in the tensor
    target: int  # first row in the parameter
    num_rows: int


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A checkpoint tensor of `shape` fills a parameter from row `row` on.

    Several tensors may fill one parameter (projections of the same rows lie in one weight), and the
    rows of one tensor may lie elsewhere in the parameter than one after the other, or at several
    places.
    """

    parameter: str  # dotted name in the module
    shape: tuple[int, ...]  # in the checkpoint; axes of size 1 may be missing in the parameter
    row: int = 0
    expert: int | None = None  # the parameter holds one such weight for every expert
    scattered: tuple[Piece, ...] = ()  # instead of `row`

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Where every row of the tensor goes."""
        return self.scattered or (Piece(0, self.row, self.shape[0]),)


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """What a checkpoint must hold, and what it may hold.

    Every place must be filled.  `tied` names tensors that may be there a second time under their
    own name: each must then equal the tensor it is tied to.  `rename` turns a name in the file into
    a name of this plan; it gives none for a tensor that is skipped on purpose.  `blocks` are the
    rows and columns that share a scale where a weight is stored in 8 bits.  `absent` tells in words
    what is missing beyond the places: a plan has no more places than its files could fill.
    """

    places: Mapping[str, TensorPlace]
    tied: Mapping[str, str]
    rename: Callable[[str], str | None]
    blocks: tuple[int, int] | None = None
    absent: tuple[str, ...] = ()
