"""How a model asks to be sampled: `generation_config.json` of its folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypic_sdk.errors import ModelFileError
from hypic_sdk.prompt.tokenizer import read_json
from hypic_sdk.transport.messages import SamplingParams

logger = logging.getLogger(__name__)

FILE_NAME = "generation_config.json"

_MAX_TOP_K = 2**31 - 1
# what is not offered, at the values that mean nothing
_NOT_OFFERED: Mapping[str, float] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_p": 0.0,
    "typical_p": 1.0,
}


def sampling_defaults(folder: Path) -> SamplingParams:
    """What applies where a caller says nothing: the model's own wish, greedy if it has none.

    Its temperature, top-k and top-p hold only if it wants to be sampled at all (`do_sample`, or no
    word on that beside a temperature); transformers' own default of the 50 best tokens never does.

    Raises:
        ModelFileError: the file is there, and can not be read or holds numbers that mean nothing.
    """
    path = folder / FILE_NAME
    fields = read_json(path) if path.is_file() else {}
    wants = fields.get("do_sample")
    if wants is None:
        wants = fields.get("temperature") is not None
    if not isinstance(wants, bool):
        raise ModelFileError(f"{path}: do_sample must be true or false, got {wants!r}")
    if not wants:
        return SamplingParams()
    ignored = [
        name
        for name, neutral in _NOT_OFFERED.items()
        if fields.get(name) is not None and fields[name] != neutral
    ]
    if ignored:
        logger.warning("%s asks for %s, which are not applied", path, ", ".join(ignored))
    top_k = _number(path, fields, "top_k", 0, low=0, high=_MAX_TOP_K)
    if top_k != int(top_k):
        raise ModelFileError(f"{path}: top_k must be a whole number, got {top_k}")
    return SamplingParams(
        temperature=_number(path, fields, "temperature", 1.0, low=0.0, high=100.0),
        top_k=int(top_k),
        # 0 would leave no token
        top_p=_number(path, fields, "top_p", 1.0, low=math.ulp(0.0), high=1.0),
    )


def _number(
    path: Path, fields: Mapping[str, Any], name: str, default: float, *, low: float, high: float
) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ModelFileError(f"{path}: {name} must be {low:g} to {high:g}, got {value!r}")
    return float(value)
