"""What "auto" means: an engine's settings, resolved once against its model."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn

from hypic_sdk.config import Determinism, EngineConfig, ReuseConfig
from hypic_sdk.errors import ConfigError
from hypic_sdk.kernels.linear.op import way
from hypic_sdk.layers.linear import Linear
from hypic_sdk.layers.moe import MixtureOfExperts
from hypic_sdk.models.base import CausalLM, ModelSpec
from hypic_sdk.version import __version__

# a forward's launches take the host as long as a large GPU computes on 8,192 tokens
_CPU_STEP_TOKENS, _STEP_TOKENS, _LARGE_STEP_TOKENS = 256, 8192, 16384
_LARGE_BYTES = 70 << 30  # of a GPU
_CHUNK_TOKENS = {"cpu": 256, "cuda": 2048}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine's settings without "auto"."""

    device: torch.device
    dtype: torch.dtype  # of the model: activations, keys, values, conv tails
    state_dtype: torch.dtype  # fp32, or fp64 with an fp64 model
    pair: str  # how pairs are kept, one of `config.PAIRS`
    determinism: Determinism
    graphs: bool  # whether forwards without cold rows are captured
    capture_asks: int | None  # at which ask for its sizes; none: once it pays
    overlap: bool  # whether a step of decode rows is launched before the one before it is read
    joined: bool  # whether live rows go in the forward that completes the entries before them
    max_context_tokens: int
    step_tokens: int
    chunk_tokens: int
    reuse: ReuseConfig
    conv_width: int
    eos_token_ids: frozenset[int]
    compute_fingerprint: str  # what bits may depend on besides model, tokens and settings
    namespace: str  # of all keys and chains; a request's own namespace is appended

    def cache_namespace(self, request_namespace: str) -> str:
        """The namespace of one tenant's keys and chains."""
        return f"{self.namespace}\0{request_namespace}"

    def row_independent(self, *, has_cold: bool) -> bool:
        """Whether a forward must use row-independent arithmetic (design 3.9)."""
        if self.determinism is Determinism.ENTRIES:
            return has_cold
        return self.determinism is Determinism.ALL


def resolve_settings(
    model: CausalLM,
    model_dtype: torch.dtype,
    device: torch.device,
    fingerprint: str,
    config: EngineConfig,
) -> EngineSettings:
    """Settings of an engine for this model.

    Args:
        model_dtype, device: those of the model's parameters.
        fingerprint: digest of the model's weights.
    Raises:
        ConfigError: the configuration asks for another dtype or device type than the model has.
    """
    _check_placement(model_dtype, device, config)
    spec, on_gpu = model.spec, device.type == "cuda"
    chunk_tokens = config.scheduler.chunk_tokens or _CHUNK_TOKENS.get(device.type, 2048)
    default = Determinism.ALL if device.type == "cpu" else Determinism.ENTRIES
    determinism = config.determinism or default
    state_dtype = torch.promote_types(model_dtype, torch.float32)
    ways = product_ways(cast("nn.Module", model), device, determinism)
    compute = compute_fingerprint(device, determinism, chunk_tokens, config.store.pair, ways)
    return EngineSettings(
        device=device,
        dtype=model_dtype,
        state_dtype=state_dtype,
        pair=config.store.pair,
        determinism=determinism,
        graphs=config.graphs == "auto" and on_gpu and can_capture(model),
        capture_asks=config.capture_asks,
        overlap=on_gpu if config.overlap == "auto" else bool(config.overlap),
        joined=config.joined,
        max_context_tokens=_max_context(spec, config),
        step_tokens=config.scheduler.step_tokens or _step_tokens(device),
        chunk_tokens=chunk_tokens,
        reuse=config.reuse,
        conv_width=spec.linear.conv_width,
        eos_token_ids=frozenset(spec.eos_token_ids),
        compute_fingerprint=compute,
        namespace=json.dumps(
            [fingerprint, str(model_dtype), str(state_dtype), config.reuse.mode.name, compute]
        ),
    )


def _step_tokens(device: torch.device) -> int:
    if device.type == "cpu":
        return _CPU_STEP_TOKENS
    is_large = (
        device.type == "cuda"
        and torch.cuda.get_device_properties(device).total_memory >= _LARGE_BYTES
    )
    return _LARGE_STEP_TOKENS if is_large else _STEP_TOKENS


def can_capture(model: CausalLM) -> bool:
    """Whether a forward on a GPU never needs a value on the host."""
    module = cast("nn.Module", model)
    dtype = next(module.parameters()).dtype
    # the kernels of sequences know no fp64; experts are looked at one by one but in bf16
    has_experts = any(isinstance(part, MixtureOfExperts) for part in module.modules())
    return dtype != torch.float64 and (not has_experts or dtype == torch.bfloat16)


def product_ways(model: nn.Module, device: torch.device, determinism: Determinism) -> str:
    """Digest of how each weight is multiplied where that is found out by trying; else empty."""
    if device.type != "cpu" or determinism is Determinism.OFF:
        return ""
    weights = {
        (parameter.shape[-1], parameter.shape[-2], parameter.dtype)
        for module in model.modules()
        if isinstance(module, Linear | MixtureOfExperts)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim > 1
    }
    ways = sorted(f"{shape[0]} {shape[1]} {shape[2]} {way(*shape)}" for shape in weights)
    return hashlib.sha256("\n".join(ways).encode()).hexdigest()[:16]


def cpu_type() -> str:
    """The processor's name where the system tells it, and the instructions that torch uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(named, platform.processor() or platform.machine())
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def compute_fingerprint(
    device: torch.device, determinism: Determinism, chunk_tokens: int, pair: str, ways: str = ""
) -> str:
    """What an entry's bits may depend on besides model, tokens and settings (law 5).

    Args:
        pair: how pairs are kept, one of `config.PAIRS`.
        ways: how products are computed, where that was found out by trying (`product_ways`).
    """
    # a product's bits on a CPU depend on how many threads share it
    name = f"{cpu_type()}, {torch.get_num_threads()} threads, products {ways}"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return (
        f"{name}; torch {torch.__version__}; hypic {__version__}; "
        f"deterministic={determinism.value}; chunk={chunk_tokens}; pair={pair}"
    )


def _max_context(spec: ModelSpec, config: EngineConfig) -> int:
    if config.max_context_tokens is None:
        return spec.max_context_tokens
    return min(config.max_context_tokens, spec.max_context_tokens)


def _check_placement(model_dtype: torch.dtype, device: torch.device, config: EngineConfig) -> None:
    if config.dtype != "auto" and getattr(torch, config.dtype) != model_dtype:
        raise ConfigError(f"the model is in {model_dtype}, the configuration asks {config.dtype}")
    if config.device != "auto" and torch.device(config.device).type != device.type:
        raise ConfigError(f"the model is on {device}, the configuration asks {config.device}")
