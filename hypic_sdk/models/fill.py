"""Copies the tensors of a checkpoint into a model's parameters, straight to their device.

One shard is mapped at a time and its tensors go over a few threads, so beside the parameters the
host never holds more than one shard, and the weights arrive as fast as the files can be read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models.checkpoint import CheckpointPlan, TensorPlace
from hypic_sdk.models.headers import StoredTensor, torn
from hypic_sdk.models.weights import LoadProgress, Mismatch, OnProgress

_MAX_THREADS = 4
# 8-bit weights become wide ones this many at a time
_CHUNK_ELEMENTS = 1 << 22

# rows as they are in the file (or as products of weight and scale), and the rows that they fill
Rows = tuple[torch.Tensor, torch.Tensor]


def fill(
    model: nn.Module,
    found: Mapping[str, StoredTensor],
    plan: CheckpointPlan,
    folder: Path,
    on_progress: OnProgress | None,
) -> None:
    """Copy every tensor into its parameter, in the parameter's dtype and on its device.

    Args:
        found: by the plan's names, as `weights.match` gives them.
        on_progress: called in this thread after each tensor; what it raises ends the load.
    Raises:
        ModelFileError: a shard can not be read, or is another than its header was taken from; or
            names every tensor with a NaN or an infinity, or too large for the dtype, and every tied
            copy that differs from its original.
    """
    filler = _Filler(dict(model.named_parameters()), plan)
    counted = _Counted(sum(stored.num_bytes for stored in found.values()), on_progress)
    originals = {name: stored for name, stored in found.items() if name not in plan.tied}
    copies = {name: stored for name, stored in found.items() if name in plan.tied}
    # a tied copy is compared with its original, which must be there
    for group, work in ((originals, filler.copy), (copies, filler.compare)):
        for path, names in _by_shard(group).items():
            _fill_from(path, {name: group[name] for name in names}, work, counted)
    # threads finish in any order
    filler.wrong.not_finite.sort()
    filler.wrong.untied.sort()
    filler.wrong.raise_if_any(folder)


def _by_shard(group: Mapping[str, StoredTensor]) -> dict[Path, list[str]]:
    shards: dict[Path, list[str]] = {}
    for name, stored in group.items():
        shards.setdefault(stored.path, []).append(name)
    return shards


@dataclass
class _Counted:
    """Bytes read so far, told to whoever wants to know."""

    total_bytes: int
    on_progress: OnProgress | None
    done_bytes: int = 0

    def add(self, stored: StoredTensor) -> None:
        self.done_bytes += stored.num_bytes
        if self.on_progress is not None:
            self.on_progress(LoadProgress(self.done_bytes, self.total_bytes, stored.name))


def _fill_from(
    path: Path,
    tensors: Mapping[str, StoredTensor],
    work: Callable[[str, StoredTensor, _Shards], None],
    counted: _Counted,
) -> None:
    """All tensors of one shard, several at a time."""
    num_threads = min(_MAX_THREADS, os.cpu_count() or 1, len(tensors))
    with _Shards(path) as shards:
        pool = ThreadPoolExecutor(num_threads, thread_name_prefix="model-fill")
        try:
            futures: dict[Future[None], StoredTensor] = {
                pool.submit(work, name, stored, shards): stored for name, stored in tensors.items()
            }
            for done in as_completed(futures):
                done.result()
                counted.add(futures[done])
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@final
class _Shards:
    """The shard that is mapped now, and those of scales that lie elsewhere than their weights."""

    def __init__(self, path: Path) -> None:
        self._stack = contextlib.ExitStack()
        self._path = path
        self._shard: Any = None

    def __enter__(self) -> _Shards:
        try:
            self._shard = self._stack.enter_context(safe_open(self._path, framework="pt"))
        except (SafetensorError, OSError, ValueError) as error:
            raise torn(self._path, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._shard = None
        self._stack.close()

    def read(self, stored: StoredTensor) -> torch.Tensor:
        """The tensor, a view of the mapped file where it is of this shard."""
        try:
            if stored.path == self._path:
                tensor: torch.Tensor = self._shard.get_tensor(stored.name)
            else:
                with safe_open(stored.path, framework="pt") as shard:
                    tensor = shard.get_tensor(stored.name).clone()
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelFileError(f"can not read {stored.name} in {stored.path}: {error}") from error
        if tuple(tensor.shape) != stored.shape:
            raise ModelFileError(f"{stored.path} changed while it was read", path=str(stored.path))
        return tensor


@dataclass
class _Filler:
    """What is filled, and all that was wrong with it."""

    parameters: Mapping[str, nn.Parameter]
    plan: CheckpointPlan
    wrong: Mismatch = field(default_factory=Mismatch)

    def copy(self, name: str, stored: StoredTensor, shards: _Shards) -> None:
        """Fill the rows that a tensor stands for."""
        place = self.plan.places[name]
        rows = self._rows(stored, place, shards)
        finite = True
        for source, target in rows():
            target.copy_(source)
            finite = _all_finite(target) and finite
        if not finite:
            fits = not all(_all_finite(source) for source, _ in rows())
            dtype = self.parameters[place.parameter].dtype
            self.wrong.not_finite.append(
                stored.name if fits else f"{stored.name} (too large for {dtype})"
            )

    def compare(self, name: str, stored: StoredTensor, shards: _Shards) -> None:
        """Hold a tied copy against its original."""
        original = self.plan.tied[name]
        rows = self._rows(stored, self.plan.places[original], shards)
        if not all(torch.equal(source.to(target), target) for source, target in rows()):
            self.wrong.untied.append(f"{stored.name} differs from {original}")

    def _rows(
        self, stored: StoredTensor, place: TensorPlace, shards: _Shards
    ) -> Callable[[], Iterator[Rows]]:
        """Makes the rows of a tensor, again at every call."""
        tensor = shards.read(stored)
        scale = None if stored.scale is None else shards.read(stored.scale)
        parameter = self.parameters[place.parameter].data
        whole = parameter if place.expert is None else parameter[place.expert]
        blocks = self.plan.blocks
        if scale is None or blocks is None:
            return lambda: _plain_rows(tensor, whole, place)
        return lambda: _scaled_rows(tensor, scale, blocks, whole, place)


def _plain_rows(tensor: torch.Tensor, whole: torch.Tensor, place: TensorPlace) -> Iterator[Rows]:
    for piece in place.pieces:
        target = whole[piece.target : piece.target + piece.num_rows]
        yield tensor[piece.source : piece.source + piece.num_rows].reshape(target.shape), target


def _scaled_rows(
    tensor: torch.Tensor,
    scale: torch.Tensor,
    blocks: tuple[int, int],
    whole: torch.Tensor,
    place: TensorPlace,
) -> Iterator[Rows]:
    """8-bit weights times the scale of their block, in fp32 on the device, chunk by chunk."""
    for piece in place.pieces:
        sources = range(piece.source, piece.source + piece.num_rows)
        target = whole[piece.target : piece.target + piece.num_rows]
        if tensor.ndim == 2:
            yield from _scaled_matrix(tensor, scale, blocks, target, sources)
            continue
        for at, i in enumerate(sources):
            yield from _scaled_matrix(
                tensor[i], scale[i], blocks, target[at], range(tensor.shape[1])
            )


def _scaled_matrix(
    matrix: torch.Tensor,
    scale: torch.Tensor,
    blocks: tuple[int, int],
    target: torch.Tensor,
    rows: Sequence[int],
) -> Iterator[Rows]:
    """Some rows of one matrix."""
    width = matrix.shape[1]
    step = max(1, _CHUNK_ELEMENTS // width)
    for at in range(0, len(rows), step):
        chosen = rows[at : at + step]
        row_blocks = torch.arange(chosen[0], chosen[-1] + 1) // blocks[0]
        scales = scale[row_blocks].to(target.device).float()
        # 8 bits an element travel to the device; they become wide there
        wide = matrix[chosen[0] : chosen[-1] + 1].to(target.device).float()
        wide *= scales.repeat_interleave(blocks[1], dim=1)[:, :width]
        yield wide, target[at : at + len(chosen)]


def _all_finite(values: torch.Tensor) -> bool:
    # a NaN or an infinity always shows in the sum, and one sum is far cheaper than a mask; only a
    # sum that is not finite has to be looked into, since it may have overflowed
    total = values.sum(dtype=torch.promote_types(values.dtype, torch.float32))
    return bool(total.isfinite()) or bool(values.isfinite().all())
