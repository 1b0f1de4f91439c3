"""How a model asks to be sampled: `generation_config.json` of its folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hypic_sdk.errors import ModelFileError
from hypic_sdk.prompt.tokenizer import read_json
from hypic_sdk.transport.messages import SamplingParams

logger = logging.getLogger(__name__)

FILE_NAME = "generation_config.json"


@dataclass(frozen=True, slots=True)
class _Wish:
    """A field of the file, and the field of SamplingParams that it fills."""

    fills: str
    low: float
    high: float
    whole: bool = False


_MOST_TOKENS = 2**31 - 1
# least numbers above zero stand where zero would mean that no token is left
_OF_DRAWING: Mapping[str, _Wish] = MappingProxyType(
    {
        "temperature": _Wish("temperature", 0.0, 100.0),
        "top_k": _Wish("top_k", 0, _MOST_TOKENS, whole=True),
        "top_p": _Wish("top_p", math.ulp(0.0), 1.0),
        "min_p": _Wish("min_p", 0.0, 1.0),
    }
)
"""These hold only where the model wants to be sampled at all."""
_ALWAYS: Mapping[str, _Wish] = MappingProxyType(
    {
        "repetition_penalty": _Wish("repetition_penalty", math.ulp(0.0), 100.0),
        "presence_penalty": _Wish("presence_penalty", -2.0, 2.0),
        "frequency_penalty": _Wish("frequency_penalty", -2.0, 2.0),
        "max_new_tokens": _Wish("max_tokens", 1, _MOST_TOKENS, whole=True),
        "min_new_tokens": _Wish("min_tokens", 0, _MOST_TOKENS, whole=True),
    }
)
# what is not offered, at the values that mean nothing
_NOT_OFFERED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "typical_p": (1.0,),
        "epsilon_cutoff": (0.0,),
        "eta_cutoff": (0.0,),
        "no_repeat_ngram_size": (0,),
        "num_beams": (1,),
        "penalty_alpha": (0.0,),
        "guidance_scale": (1.0,),
        "bad_words_ids": ([],),
        "suppress_tokens": ([],),
        "sequence_bias": ({}, []),
        "exponential_decay_length_penalty": (),
        "forced_eos_token_id": (),
        "stop_strings": ([], ""),
        "max_length": (20,),  # of prompt and reply together; transformers' own default
    }
)


def sampling_defaults(folder: Path) -> SamplingParams:
    """What applies where a caller says nothing: the model's own wish, greedy if it has none.

    Its temperature, top-k, top-p and min-p hold only if it wants to be sampled at all (`do_sample`,
    or no word on that beside a temperature); transformers' own default of the 50 best tokens never
    does.  Penalties and numbers of new tokens hold either way.  End tokens are the model's
    (`models.loader.load_config` reads them).

    Raises:
        ModelFileError: the file is there, and can not be read or holds numbers that mean nothing.
    """
    path = folder / FILE_NAME
    fields = _fields_of(folder)
    wants = fields.get("do_sample")
    if wants is None:
        wants = fields.get("temperature") is not None
    if not isinstance(wants, bool):
        raise ModelFileError(f"{path}: do_sample must be true or false, got {wants!r}")
    filled: dict[str, Any] = {"temperature": 1.0} if wants else {}
    for name, wish in {**(_OF_DRAWING if wants else {}), **_ALWAYS}.items():
        if fields.get(name) is not None:
            filled[wish.fills] = _number(path, name, fields[name], wish)
    params = SamplingParams(**filled)
    if params.min_tokens > params.max_tokens:
        raise ModelFileError(
            f"{path}: min_new_tokens must be at most {params.max_tokens}, got {params.min_tokens}"
        )
    ignored = ignored_wishes(folder)
    if ignored:
        logger.warning("%s asks for %s, which are not applied", path, ", ".join(ignored))
    return params


def ignored_wishes(folder: Path) -> list[str]:
    """Names of fields of the file that ask for something that is not done.

    Raises:
        ModelFileError: the file is there and can not be read.
    """
    fields = _fields_of(folder)
    ignored = [
        name
        for name, neutral in _NOT_OFFERED.items()
        if fields.get(name) is not None and fields[name] not in neutral
    ]
    if fields.get("max_new_tokens") is not None and "max_length" in ignored:
        ignored.remove("max_length")  # the newer name goes first, in transformers too
    return ignored


def _fields_of(folder: Path) -> Mapping[str, Any]:
    path = folder / FILE_NAME
    return read_json(path) if path.is_file() else {}


def _number(path: Path, name: str, value: Any, wish: _Wish) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelFileError(f"{path}: {name} must be a number, got {value!r}")
    if not wish.low <= value <= wish.high:
        raise ModelFileError(f"{path}: {name} must be {wish.low:g} to {wish.high:g}, got {value!r}")
    if wish.whole and value != int(value):
        raise ModelFileError(f"{path}: {name} must be a whole number, got {value!r}")
    return int(value) if wish.whole else float(value)
