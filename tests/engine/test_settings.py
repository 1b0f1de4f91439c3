"""Settings: "auto" is resolved once, and all that bits depend on is in the namespace."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.config import (
    MODES,
    Determinism,
    EngineConfig,
    ReuseConfig,
    SchedulerConfig,
    StoreConfig,
)
from hypic_sdk.engine import settings as settings_module
from hypic_sdk.engine.settings import EngineSettings, resolve_settings
from hypic_sdk.errors import ConfigError
from hypic_sdk.kernels.linear import reference
from tests.engine.harness import model_of

CPU = torch.device("cpu")


def resolve(
    config: EngineConfig | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    fingerprint: str = "model",
) -> EngineSettings:
    model = model_of("gated_delta_rule")
    return resolve_settings(model, dtype, CPU, fingerprint, config or EngineConfig())


def test_auto_on_a_cpu():
    settings = resolve()
    assert (settings.step_tokens, settings.chunk_tokens) == (256, 256)
    assert settings.determinism is Determinism.ALL
    assert settings.state_dtype == torch.float32
    assert settings.max_context_tokens == model_of("gated_delta_rule").spec.max_context_tokens
    assert resolve(dtype=torch.float64).state_dtype == torch.float64
    assert resolve(dtype=torch.bfloat16).state_dtype == torch.float32


def test_the_context_is_the_smaller_of_both_limits():
    assert resolve(EngineConfig(max_context_tokens=100)).max_context_tokens == 100
    assert resolve(EngineConfig(max_context_tokens=10**9)).max_context_tokens == 8192


def test_whatever_bits_depend_on_is_in_the_namespace():
    variants = [
        resolve(),
        resolve(fingerprint="other"),
        resolve(dtype=torch.bfloat16),
        resolve(EngineConfig(determinism=Determinism.ENTRIES)),
        resolve(EngineConfig(store=StoreConfig(pair="float32"))),
        resolve(EngineConfig(reuse=ReuseConfig(mode=MODES["transition"]))),
        resolve(EngineConfig(scheduler=SchedulerConfig(chunk_tokens=128))),
    ]
    namespaces = {settings.cache_namespace("") for settings in variants}
    assert len(namespaces) == len(variants)
    assert resolve().cache_namespace("a") != resolve().cache_namespace("b")


def test_what_bits_do_not_depend_on_is_not():
    other = EngineConfig(
        scheduler=SchedulerConfig(step_tokens=512, max_requests=3),
        store=StoreConfig(budget_bytes=1 << 20),
        reuse=ReuseConfig(min_segment_tokens=1),
    )
    assert resolve(other).namespace == resolve().namespace


def test_threads_of_a_cpu_are_in_the_fingerprint():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = resolve().compute_fingerprint
        torch.set_num_threads(2)
        assert resolve().compute_fingerprint != one
    finally:
        torch.set_num_threads(before)


def test_the_processor_and_how_it_multiplies_are_in_the_fingerprint(monkeypatch):
    one = resolve().compute_fingerprint
    monkeypatch.setattr(settings_module, "cpu_type", lambda: "another processor")
    assert resolve().compute_fingerprint != one
    monkeypatch.undo()
    assert resolve().compute_fingerprint == one
    whole = reference.way

    def other_way(num_inputs, num_outputs, dtype):
        return {"cut": "tiled", "tiled": "cut"}[whole(num_inputs, num_outputs, dtype)]

    monkeypatch.setattr(reference, "way", other_way)
    assert resolve().compute_fingerprint != one
    # without row-independent products there is nothing to choose
    off = EngineConfig(determinism=Determinism.OFF)
    changed = resolve(off).compute_fingerprint
    monkeypatch.undo()
    assert resolve(off).compute_fingerprint == changed


@pytest.mark.parametrize(
    ("determinism", "cold", "live"),
    [
        (Determinism.OFF, False, False),
        (Determinism.ENTRIES, True, False),
        (Determinism.ALL, True, True),
    ],
)
def test_which_forwards_are_row_independent(determinism, cold, live):
    settings = resolve(EngineConfig(determinism=determinism))
    assert settings.row_independent(has_cold=True) is cold
    assert settings.row_independent(has_cold=False) is live


@pytest.mark.parametrize(("overlap", "is_on"), [(False, False), (True, True), ("auto", False)])
def test_steps_overlap_where_they_are_told_to_or_on_cuda(overlap, is_on):
    assert resolve(EngineConfig(overlap=overlap)).overlap is is_on  # here on a CPU


def test_a_model_elsewhere_than_configured_is_refused():
    with pytest.raises(ConfigError):
        resolve(EngineConfig(dtype="bfloat16"))
    with pytest.raises(ConfigError):
        resolve(EngineConfig(device="cuda"))
