"""Where the tensors of a checkpoint go in a model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A checkpoint tensor of `shape` fills a parameter from row `row` on.

    Several tensors may fill one parameter (projections of the same rows lie in one weight).
    """

    parameter: str  # dotted name in the module
    shape: tuple[int, ...]  # in the checkpoint; axes of size 1 may be missing in the parameter
    row: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """What a checkpoint must hold, and what it may hold.

    Every place must be filled.  `tied` names tensors that may be there a second time under their
    own name: each must then equal the tensor it is tied to.  `rename` turns a name in the file into
    a name of this plan; it gives none for a tensor that is skipped on purpose.
    """

    places: Mapping[str, TensorPlace]
    tied: Mapping[str, str]
    rename: Callable[[str], str | None]
