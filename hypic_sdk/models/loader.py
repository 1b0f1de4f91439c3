"""A folder with config.json and safetensors becomes a model.  No remote code, no pickles."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models import qwen3_5, tiny_checkpoint
from hypic_sdk.models.base import CausalLM
from hypic_sdk.models.checkpoint import CheckpointPlan
from hypic_sdk.models.config_fields import FieldReader
from hypic_sdk.models.fill import fill
from hypic_sdk.models.fingerprint import DigestCache, FilesHash
from hypic_sdk.models.headers import StoredTensor, read_headers
from hypic_sdk.models.weights import OnProgress, match

logger = logging.getLogger(__name__)

MODEL_TYPES: Mapping[str, ModuleType] = MappingProxyType(
    {
        "qwen3_5": qwen3_5,
        "qwen3_5_text": qwen3_5,
        "qwen3_5_moe": qwen3_5,
        "qwen3_5_moe_text": qwen3_5,
        "qwen3_next": qwen3_5,
        "tiny_hybrid": tiny_checkpoint,
    }
)
"""`model_type` of a config.json to the module that builds it."""

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "float64": torch.float64,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }
)
"""Precisions that a model can run in, by the names that settings and checkpoints use."""

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_MAX_JSON_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a checkpoint that matter."""

    folder: Path
    config: Path
    shards: tuple[Path, ...]  # in order of names
    weight_map: Mapping[str, str] | None  # tensor to file, if there is an index


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A config.json that was understood: the module that builds it, and its own config."""

    model_type: str
    module: ModuleType
    config: Any
    dtype: torch.dtype  # of the checkpoint, by its config


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose config and headers fit each other; its tensors are not read yet."""

    files: ModelFiles
    loaded: ModelConfig
    plan: CheckpointPlan
    found: Mapping[str, StoredTensor]  # by the plan's names

    @property
    def dtype(self) -> torch.dtype:
        """Of the checkpoint, by its config."""
        return self.loaded.dtype

    def build(self, dtype: torch.dtype) -> Any:
        """The model on the default device (`with torch.device(...)`), its parameters not filled."""
        return self.loaded.module.Model(self.loaded.config, dtype)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in eval mode, and the SHA-256 over its config and shards (hexadecimal)."""

    model: CausalLM
    fingerprint: str


def load_model(
    folder: Path,
    *,
    device: torch.device | str,
    dtype: torch.dtype | None = None,
    on_progress: OnProgress | None = None,
    digest_cache: Path | None = None,
) -> LoadedModel:
    """Load a checkpoint folder.

    Args:
        dtype: to run in; none is the checkpoint's own.  Decay parameters stay at least fp32.
        on_progress: called after each tensor; what it raises ends the load.
        digest_cache: file in which digests of shards are remembered; none remembers nothing.
    Raises:
        ModelFileError: anything in the folder that is missing, torn, unknown or does not fit.
    """
    started_s = time.monotonic()
    files = model_files(folder)
    hashed = (files.config, *files.shards)
    with FilesHash(hashed, DigestCache.open(digest_cache)) as hashes:
        opened = open_checkpoint(files)
        with torch.device(device):
            model = opened.build(dtype or opened.dtype)
        fill(model, opened.found, opened.plan, folder, on_progress)
        fingerprint = hashes.fingerprint(hashed)
    model.eval()
    logger.info(
        "loaded %s on %s in %.1f s fingerprint=%s",
        folder,
        device,
        time.monotonic() - started_s,
        fingerprint[:16],
    )
    return LoadedModel(model, fingerprint)


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Read config and headers, and hold them against each other; no tensor is read.

    Raises:
        ModelFileError: as `load_model`, but for what only values can tell.
    """
    stored = read_headers(files.shards)
    _check_index(files, stored)
    return match_headers(files, stored)


def match_headers(files: ModelFiles, stored: Mapping[str, Sequence[StoredTensor]]) -> Checkpoint:
    """Hold headers, wherever they were read, against the config.

    Raises:
        ModelFileError: what the config does not take, or every tensor that does not fit it.
    """
    loaded = load_config(files.folder)
    plan = loaded.module.checkpoint_plan(loaded.config, stored.keys())
    return Checkpoint(files, loaded, plan, match(stored, plan, files.folder))


def load_config(folder: Path) -> ModelConfig:
    """Read config.json (and the end-of-text ids of generation_config.json).

    Raises:
        ModelFileError: unknown model type, or fields that are wrong or unknown, each named.
    """
    folder = Path(folder)
    fields = _read_json(folder / "config.json")
    model_type = fields.get("model_type")
    module = MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
    if module is None:
        known = ", ".join(MODEL_TYPES)
        raise ModelFileError(
            f"{folder / 'config.json'}: model_type {model_type!r} is not one of {known}",
            model_type=str(model_type),
        )
    config = module.Config.from_hf(fields)
    ids = (*config.eos_token_ids, *_generation_eos(folder))
    config = replace(config, eos_token_ids=tuple(dict.fromkeys(ids)))
    return ModelConfig(str(model_type), module, config, _config_dtype(fields))


def model_files(folder: Path) -> ModelFiles:
    """Find config and shards, without opening a shard.

    Raises:
        ModelFileError: something is missing, an index names what is not there, or there are only
            pickles.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelFileError(f"no such model folder: {folder}", path=str(folder))
    config = folder / "config.json"
    if not config.is_file():
        raise ModelFileError(f"{folder} holds no config.json", path=str(folder))
    if (folder / _SINGLE).is_file():
        return ModelFiles(folder, config, (folder / _SINGLE,), None)
    if (folder / _INDEX).is_file():
        return _indexed_files(folder, config)
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return ModelFiles(folder, config, tuple(others), None)
    if others:
        raise ModelFileError(
            f"{folder} holds {len(others)} safetensors files and no {_INDEX}", path=str(folder)
        )
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        raise ModelFileError(
            f"{folder} holds only pickles ({', '.join(pickles[:3])}), which are never opened; "
            "convert them to safetensors",
            path=str(folder),
        )
    raise ModelFileError(f"{folder} holds no safetensors file", path=str(folder))


def _indexed_files(folder: Path, config: Path) -> ModelFiles:
    weight_map = _read_json(folder / _INDEX).get("weight_map")
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    # plain names only: an index must not reach outside its folder
    if not names or any(not isinstance(n, str) or Path(n).name != n or not n for n in names):
        raise ModelFileError(f"{folder / _INDEX} holds no weight_map of plain file names")
    shards = sorted(set(names))
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise ModelFileError(
            f"{folder / _INDEX} names files that are not there: {', '.join(missing)}",
            missing_files=missing,
        )
    return ModelFiles(folder, config, tuple(folder / name for name in shards), weight_map)


def _check_index(files: ModelFiles, stored: Any) -> None:
    """A tensor that the index names and no shard holds is missing, whatever the config says."""
    if files.weight_map is None:
        return
    absent = sorted(set(files.weight_map) - set(stored))
    if absent:
        raise ModelFileError(
            f"{files.folder / _INDEX} names tensors that no shard holds: {', '.join(absent[:20])}",
            missing=absent,
        )


def _config_dtype(fields: Mapping[str, Any]) -> torch.dtype:
    text = fields.get("text_config")
    for source in (fields, text if isinstance(text, dict) else {}):
        for field in ("dtype", "torch_dtype"):
            name = source.get(field)
            if name is None:
                continue
            if not isinstance(name, str) or name not in DTYPES:
                raise ModelFileError(f"config.json: {field} {name!r} is not one of {list(DTYPES)}")
            return DTYPES[name]
    return torch.float32


def _generation_eos(folder: Path) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    if not path.is_file():
        return ()
    reader = FieldReader(_read_json(path), file=path.name)
    ids = reader.token_ids("eos_token_id")
    reader.raise_problems()
    return ids


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelFileError(f"{path} has more than {_MAX_JSON_BYTES} bytes", path=str(path))
        content = json.loads(path.read_bytes(), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"can not read {path}: {error}", path=str(path)) from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} holds no JSON object", path=str(path))
    return content


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
