"""What the shards of a checkpoint hold, by their headers; no tensor is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError, safe_open

from hypic_sdk.errors import ModelFileError

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}
)
"""Bytes an element, of the dtypes that can be read, as safetensors writes them."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a shard, by its header."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as safetensors writes it
    path: Path  # of its shard
    scale: StoredTensor | None = None  # [.., row blocks, column blocks], of 8-bit weights

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size in the file; 0 for a dtype that can not be read."""
        return DTYPE_BYTES.get(self.dtype, 0) * self.num_elements


def read_headers(paths: Sequence[Path]) -> dict[str, list[StoredTensor]]:
    """The tensors of all shards by name (several under one name if shards disagree).

    One shard is open at a time.

    Raises:
        ModelFileError: a shard is torn, or no safetensors file.
    """
    tensors: dict[str, list[StoredTensor]] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 - a handle, not a dictionary
                    part = shard.get_slice(name)
                    stored = StoredTensor(name, tuple(part.get_shape()), part.get_dtype(), path)
                    tensors.setdefault(name, []).append(stored)
        except (SafetensorError, OSError, ValueError) as error:
            raise torn(path, error) from error
    return tensors


def torn(path: Path, error: Exception) -> ModelFileError:
    """The error for a shard that can not be read."""
    return ModelFileError(f"{path} is torn or no safetensors file: {error}", path=str(path))
