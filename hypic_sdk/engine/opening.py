"""From a checkpoint folder and settings to an engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hypic_sdk.config import EngineConfig, cache_folder
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.grammars import GrammarBook
from hypic_sdk.errors import ConfigError
from hypic_sdk.models.loader import load_model
from hypic_sdk.prompt.tokenizer import TOKENIZER_FILE

if TYPE_CHECKING:
    from hypic_sdk.models.weights import OnProgress


def load_engine(
    folder: Path, config: EngineConfig, on_progress: OnProgress | None = None
) -> Engine:
    """Load a model onto its device, take the pools' memory, capture usual forwards (on CUDA).

    Raises:
        ModelFileError: a folder that is not a whole model.
        ConfigError: settings that do not fit the model, or no room for it or for its cache.
    """
    device = usable_device(config.device)
    # a CPU is slow in 16 bit, and reads the checkpoint's own precision without loss in 32
    dtype = torch.float32 if device.type == "cpu" else None
    if config.dtype != "auto":
        dtype = getattr(torch, config.dtype)
    with _room_for_weights(device):
        loaded = load_model(
            folder,
            device=device,
            dtype=dtype,
            on_progress=on_progress,
            digest_cache=cache_folder() / "digests.json",
        )
    spec = loaded.model.spec
    grammars = GrammarBook(
        (folder / TOKENIZER_FILE).read_text, vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_token_ids,
    )  # fmt: skip
    engine = Engine(loaded.model, loaded.fingerprint, config, grammars=grammars)
    engine.capture_ahead(config)
    return engine


@contextmanager
def _room_for_weights(device: torch.device) -> Iterator[None]:
    """Raises ConfigError where the device has less memory than the model takes."""
    try:
        yield
    # on a CPU torch has no class of its own for it
    except (MemoryError, RuntimeError) as error:
        of_cpu = isinstance(error, MemoryError) or "allocate memory" in str(error)
        if not (of_cpu or isinstance(error, torch.OutOfMemoryError)):
            raise
        raise ConfigError(
            f"{device} has no room for the model's weights; hypic doctor tells what they take",
            device=str(device),
        ) from error


def usable_device(name: str) -> torch.device:
    """The device of a setting.  Raises ConfigError for one that is not here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"no device {name!r} can be used here: {reason}", device=name) from error
    return device
