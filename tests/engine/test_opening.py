"""From a folder and settings to an engine, on a machine without the room for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hypic_sdk.config import EngineConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.engine.opening import load_engine
from hypic_sdk.errors import ConfigError

TOO_MUCH = 2**60  # bytes: more than a processor can name


def take_too_much(*_: Any) -> None:
    torch.empty(TOO_MUCH, dtype=torch.uint8)


def run_out_of_device_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def fail(*_: Any) -> None:
    raise RuntimeError("something else")


@pytest.mark.parametrize("building", [take_too_much, run_out_of_device_memory])
def test_weights_without_room_are_a_matter_of_settings(
    building: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hypic_sdk.models.qwen3_5.Model.__init__", building)
    with pytest.raises(ConfigError, match="cpu has no room for the model's weights") as caught:
        load_engine(reader_path(), EngineConfig(device="cpu"))
    assert caught.value.details == {"device": "cpu"}


def test_a_cache_without_room_is_a_matter_of_settings() -> None:
    config = EngineConfig(device="cpu", store=StoreConfig(budget_bytes=TOO_MUCH))
    with pytest.raises(ConfigError, match=f"cpu does not give {TOO_MUCH} bytes for the pools"):
        load_engine(reader_path(), config)


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypic_sdk.models.qwen3_5.Model.__init__", fail)
    with pytest.raises(RuntimeError, match="something else"):
        load_engine(reader_path(), EngineConfig(device="cpu"))
