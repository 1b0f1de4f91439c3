"""Fills a model's parameters from safetensors shards, and refuses what does not fit."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models.checkpoint import CheckpointPlan, TensorPlace

logger = logging.getLogger(__name__)

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}
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


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a shard, by its header."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as safetensors writes it
    shard: Any  # an open safetensors handle
    scale: StoredTensor | None = None  # [.., row blocks, column blocks], of 8-bit weights

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        count = _BYTES.get(self.dtype, 0)
        for size in self.shape:
            count *= size
        return count


@dataclass
class _Mismatch:
    """All that is wrong with a checkpoint; raised at once."""

    missing: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    misshaped: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # duplicates, dtypes that are not offered
    not_finite: list[str] = field(default_factory=list)
    untied: list[str] = field(default_factory=list)

    def raise_if_any(self, folder: Path) -> None:
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


@contextlib.contextmanager
def open_shards(paths: Sequence[Path]) -> Iterator[dict[str, list[StoredTensor]]]:
    """Map the shards and list their tensors by name (several under one name if shards disagree).

    Raises:
        ModelFileError: a shard is torn, or no safetensors file.
    """
    tensors: dict[str, list[StoredTensor]] = {}
    with contextlib.ExitStack() as stack:
        for path in paths:
            try:
                shard = stack.enter_context(safe_open(path, framework="pt"))
                for name in shard.keys():  # noqa: SIM118 - a handle, not a dictionary
                    part = shard.get_slice(name)
                    stored = StoredTensor(name, tuple(part.get_shape()), part.get_dtype(), shard)
                    tensors.setdefault(name, []).append(stored)
            except (SafetensorError, OSError, ValueError) as error:
                raise ModelFileError(
                    f"{path} is torn or no safetensors file: {error}", path=str(path)
                ) from error
        yield tensors


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
    wrong = _Mismatch()
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
    stored: StoredTensor, plan: CheckpointPlan, planned: str, wrong: _Mismatch
) -> None:
    place = plan.places[plan.tied.get(planned, planned)]
    if stored.shape != place.shape:
        wrong.misshaped.append(f"{stored.name} {list(stored.shape)}, not {list(place.shape)}")
    if stored.dtype not in _BYTES:
        wrong.unreadable.append(f"{stored.name} (dtype {stored.dtype})")


def _attach_scales(
    found: dict[str, StoredTensor],
    scales: Mapping[str, StoredTensor],
    plan: CheckpointPlan,
    wrong: _Mismatch,
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
    stored: StoredTensor, scale: StoredTensor, blocks: tuple[int, int], wrong: _Mismatch
) -> None:
    *more, height, width = stored.shape
    want = (*more, -(-height // blocks[0]), -(-width // blocks[1]))
    if scale.shape != want:
        wrong.misshaped.append(f"{scale.name} {list(scale.shape)}, not {list(want)}")
    if scale.dtype == _SCALED or scale.dtype not in _BYTES:
        wrong.unreadable.append(f"{scale.name} (dtype {scale.dtype})")


def fill(
    model: nn.Module,
    found: Mapping[str, StoredTensor],
    plan: CheckpointPlan,
    folder: Path,
    on_progress: OnProgress | None,
) -> None:
    """Copy every tensor into its parameter, in the parameter's dtype and on its device.

    Raises:
        ModelFileError: names every tensor with a NaN or an infinity, or too large for the dtype,
            and every tied copy that differs from its original.
    """
    parameters = dict(model.named_parameters())
    total_bytes = sum(stored.num_bytes for stored in found.values())
    wrong, done_bytes = _Mismatch(), 0
    # originals before their tied copies
    for name in sorted(found, key=lambda item: item in plan.tied):
        stored = found[name]
        place = plan.places[plan.tied.get(name, name)]
        tensor = _read(stored, folder)
        if stored.scale is not None and plan.blocks is not None:
            tensor = _scaled(tensor, _read(stored.scale, folder), plan.blocks)
        moves = list(_moves(tensor, parameters[place.parameter].data, place))
        if name in plan.tied:
            if not all(torch.equal(tensor.to(target), target) for tensor, target in moves):
                wrong.untied.append(f"{stored.name} differs from {plan.tied[name]}")
        else:
            _copy(moves, stored.name, wrong)
        done_bytes += stored.num_bytes
        if on_progress is not None:
            on_progress(LoadProgress(done_bytes, total_bytes, stored.name))
    wrong.raise_if_any(folder)


def _scaled(tensor: torch.Tensor, scale: torch.Tensor, blocks: tuple[int, int]) -> torch.Tensor:
    """8-bit weights times the scale of their block, in fp32."""
    height, width = tensor.shape[-2:]
    wide = tensor.float()
    for i, row_scales in enumerate(scale.float().unbind(-2)):
        rows = slice(i * blocks[0], min((i + 1) * blocks[0], height))
        columns = row_scales.repeat_interleave(blocks[1], dim=-1)[..., :width]
        wide[..., rows, :] *= columns.unsqueeze(-2)
    return wide


def _moves(
    tensor: torch.Tensor, parameter: torch.Tensor, place: TensorPlace
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Rows of a tensor, each block with the rows of the parameter that it fills."""
    whole = parameter if place.expert is None else parameter[place.expert]
    for piece in place.pieces:
        target = whole[piece.target : piece.target + piece.num_rows]
        yield tensor[piece.source : piece.source + piece.num_rows].reshape(target.shape), target


def _copy(moves: Sequence[tuple[torch.Tensor, torch.Tensor]], name: str, wrong: _Mismatch) -> None:
    for tensor, target in moves:
        target.copy_(tensor)
    if not all(_all_finite(target) for _, target in moves):
        fits = not all(_all_finite(tensor) for tensor, _ in moves)
        dtype = moves[0][1].dtype
        wrong.not_finite.append(name if fits else f"{name} (too large for {dtype})")


def _all_finite(values: torch.Tensor) -> bool:
    # a NaN or an infinity always shows in the sum, and one sum is far cheaper than a mask; only a
    # sum that is not finite has to be looked into, since it may have overflowed
    total = values.sum(dtype=torch.promote_types(values.dtype, torch.float32))
    return bool(total.isfinite()) or bool(values.isfinite().all())


def _read(stored: StoredTensor, folder: Path) -> torch.Tensor:
    try:
        tensor: torch.Tensor = stored.shard.get_tensor(stored.name)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"can not read {stored.name} in {folder}: {error}") from error
    return tensor
