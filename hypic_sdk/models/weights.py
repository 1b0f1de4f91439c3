"""Which stored tensor goes where, and all that does not fit, told in one error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models.checkpoint import CheckpointPlan
from hypic_sdk.models.headers import DTYPE_BYTES, StoredTensor

logger = logging.getLogger(__name__)

_SCALED = "F8_E4M3"  # means something only with a scale for each block
_SCALE = "_scale_inv"  # behind the name of the tensor that it scales
# a message stays readable; every name is in the error's details
_NAMED_IN_MESSAGE = 20


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a checkpoint is read."""

    done_bytes: int
    total_bytes: int
    tensor: str  # the one just read


OnProgress = Callable[[LoadProgress], None]


@dataclass
class Mismatch:
    """All that is wrong with a checkpoint; raised at once."""

    missing: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    misshaped: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # duplicates, dtypes that are not offered
    not_finite: list[str] = field(default_factory=list)
    untied: list[str] = field(default_factory=list)

    def raise_if_any(self, folder: Path) -> None:
        """Raise ModelFileError with every name in its details, the first of each kind in text."""
        found = {kind: names for kind, names in vars(self).items() if names}
        if not found:
            return
        parts = []
        for kind, names in found.items():
            more = len(names) - _NAMED_IN_MESSAGE
            listed = ", ".join(names[:_NAMED_IN_MESSAGE]) + (
                f" and {more} more" if more > 0 else ""
            )
            parts.append(f"{kind.replace('_', ' ')}: {listed}")
        raise ModelFileError(
            f"the checkpoint in {folder} does not fit its config; " + "; ".join(parts), **found
        )


def match(
    tensors: Mapping[str, Sequence[StoredTensor]], plan: CheckpointPlan, folder: Path
) -> dict[str, StoredTensor]:
    """The stored tensor of every place (and tied copy), by the plan's names.

    Raises:
        ModelFileError: names every tensor that is missing, surplus, misshaped or unreadable.
    """
    found: dict[str, StoredTensor] = {}
    scales: dict[str, StoredTensor] = {}
    skipped: list[StoredTensor] = []
    wrong = Mismatch()
    for name, copies in tensors.items():
        planned = plan.rename(name)
        if planned is None:
            skipped += copies
        elif len(copies) > 1 or planned in found or planned in scales:
            wrong.unreadable.append(f"{name} (stored twice)")
        elif plan.blocks and planned.endswith(_SCALE):
            scales[planned] = copies[0]
        elif planned not in plan.places and planned not in plan.tied:
            wrong.surplus.append(name)
        else:
            found[planned] = copies[0]
            _check_header(copies[0], plan, planned, wrong)
    _attach_scales(found, scales, plan, wrong)
    wrong.missing += [name for name in plan.places if name not in found]
    wrong.missing += plan.absent
    wrong.raise_if_any(folder)
    if skipped:
        logger.info(
            "skipped %d tensors (%.1f MiB) that text generation does not use, such as %s",
            len(skipped),
            sum(tensor.num_bytes for tensor in skipped) / 2**20,
            skipped[0].name,
        )
    return found


def _check_header(
    stored: StoredTensor, plan: CheckpointPlan, planned: str, wrong: Mismatch
) -> None:
    place = plan.places[plan.tied.get(planned, planned)]
    if stored.shape != place.shape:
        wrong.misshaped.append(f"{stored.name} {list(stored.shape)}, not {list(place.shape)}")
    if stored.dtype not in DTYPE_BYTES:
        wrong.unreadable.append(f"{stored.name} (dtype {stored.dtype})")


def _attach_scales(
    found: dict[str, StoredTensor],
    scales: Mapping[str, StoredTensor],
    plan: CheckpointPlan,
    wrong: Mismatch,
) -> None:
    """Give every 8-bit weight its scale; one has no meaning without the other."""
    for name, scale in scales.items():
        scaled = found.get(name.removesuffix(_SCALE))
        if scaled is None or scaled.dtype != _SCALED:
            wrong.surplus.append(scale.name)
    for planned, stored in found.items():
        if stored.dtype != _SCALED:
            continue
        found_scale = scales.get(planned + _SCALE)
        if plan.blocks is None or len(stored.shape) < 2 or planned in plan.tied:
            wrong.unreadable.append(f"{stored.name} (dtype {stored.dtype})")
        elif found_scale is None:
            wrong.missing.append(stored.name + _SCALE)
        else:
            _check_scale(stored, found_scale, plan.blocks, wrong)
            found[planned] = replace(stored, scale=found_scale)


def _check_scale(
    stored: StoredTensor, scale: StoredTensor, blocks: tuple[int, int], wrong: Mismatch
) -> None:
    *more, height, width = stored.shape
    want = (*more, -(-height // blocks[0]), -(-width // blocks[1]))
    if scale.shape != want:
        wrong.misshaped.append(f"{scale.name} {list(scale.shape)}, not {list(want)}")
    if scale.dtype == _SCALED or scale.dtype not in DTYPE_BYTES:
        wrong.unreadable.append(f"{scale.name} (dtype {scale.dtype})")
