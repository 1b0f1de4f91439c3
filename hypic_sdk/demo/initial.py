"""The reader's first weights, and the decays that training leaves alone."""

from __future__ import annotations

import torch

from hypic_sdk.demo.linear_layers import GATE_DIVISOR, GatedDeltaNet, Gla, Kda, LinearLayer
from hypic_sdk.demo.reader_model import Reader, ReaderConfig

#: a token's log decay in the heads of the first key head, whose decay is fixed: at 256 tokens such
#: a head keeps e^-0.12 and e^-0.5 of what was written
SLOW_STEPS = (1 / 2048, 1 / 512)
#: between these a token's log decay begins in the other heads; without conv and erase some channels
#: must also see hardly more than the token before
DELTA_STEPS = (1e-3, 1e-1)
GATE_STEPS = (1e-3, 1.0)


def slow_heads(config: ReaderConfig) -> int:
    """Return how many heads of a linear layer keep a fixed slow decay: those of one key head."""
    return config.num_value_heads // config.num_key_heads


def hold_slow_decays(reader: Reader) -> None:
    """Zero the gradients of the fixed decays; call it before every optimizer step."""
    for layer in reader.layers:
        if isinstance(layer.mixer, LinearLayer):
            for weight in layer.mixer.decay_weights:
                if weight.grad is not None:
                    weight.grad[: slow_rows(reader.config, weight)] = 0.0


def slow_rows(config: ReaderConfig, weight: torch.Tensor) -> int:
    """Return how many rows of a decay weight belong to heads whose decay is fixed."""
    return len(weight) // config.num_value_heads * slow_heads(config)


def init_weights(reader: Reader, seed: int) -> None:
    """Small normal weights; slow decays, so that heads remember over hundreds of tokens."""
    generator = torch.Generator().manual_seed(seed)
    depth = reader.config.num_layers
    for name, weight in reader.named_parameters():
        if name.endswith(("A_log", "_bias")):
            continue
        if name.endswith("conv1d.weight"):
            weight.data.uniform_(-0.5, 0.5, generator=generator)
        elif weight.dim() == 2:
            inward = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
            std = 0.02 / (2 * depth) ** 0.5 if inward else 0.02
            weight.data.normal_(0.0, std, generator=generator)
    for layer in reader.layers:
        if isinstance(layer.mixer, LinearLayer):
            _init_decays(layer.mixer, reader.config, generator)


def _init_decays(mixer: LinearLayer, config: ReaderConfig, generator: torch.Generator) -> None:
    """Draw the decays that are learned; those of the first key head are given."""
    num_slow = slow_heads(config)
    if isinstance(mixer, GatedDeltaNet | Kda):
        bias = mixer.dt_bias if isinstance(mixer, GatedDeltaNet) else mixer.step_bias
        step = _draw_steps(bias, DELTA_STEPS, num_slow, generator)
        scale = (1.0 + torch.rand(config.num_value_heads, generator=generator)).log()
        scale[:num_slow] = 0.0
        bias.data.copy_(step + torch.log(-torch.expm1(-step)))
        mixer.A_log.data.copy_(scale)
    elif isinstance(mixer, Gla):
        step = _draw_steps(mixer.gate_bias, GATE_STEPS, num_slow, generator)
        mixer.gate_bias.data.copy_(-torch.expm1(GATE_DIVISOR * step).log())
    for weight in mixer.decay_weights[-1:]:
        weight.data[: slow_rows(config, weight)] = 0.0


def _draw_steps(
    bias: torch.Tensor, between: tuple[float, float], num_slow: int, generator: torch.Generator
) -> torch.Tensor:
    """Log-uniform steps in the shape of a bias; in the slow heads all of a head's are alike."""
    low, high = (torch.tensor(step).log() for step in between)
    step = (low + (high - low) * torch.rand(bias.shape, generator=generator)).exp()
    slow = torch.tensor(SLOW_STEPS).repeat(num_slow)[:num_slow]
    step[:num_slow] = slow.reshape(-1, *([1] * (bias.dim() - 1)))
    return step


def begin_as(reader: Reader, other: Reader) -> list[str]:
    """Begin with another reader's weights, also one with other linear layers.

    What has the same name and size is taken. The linear layers of kda begin with the decays of the
    gated delta rule, those of a head in all its key channels; a gate of gla means something else.

    Returns:
        names of the weights that stay as they are: there are none like them.
    """
    found, kept = other.state_dict(), []
    if (reader.config.family, other.config.family) == ("kda", "gated_delta_rule"):
        found |= _by_channel(other)
    with torch.no_grad():
        for name, weight in reader.state_dict().items():
            source = found.get(name)
            if source is None or source.shape != weight.shape:
                kept.append(name)
            else:
                weight.copy_(source)
    return kept


def _by_channel(reader: Reader) -> dict[str, torch.Tensor]:
    """Decays of the gated delta rule's heads, by the names and in the shapes of kda."""
    found, key_dim = {}, reader.config.key_dim
    for name, module in reader.named_modules():
        if isinstance(module, GatedDeltaNet):
            rows = module.in_proj_a.weight
            found[f"{name}.in_proj_a.weight"] = rows.repeat_interleave(key_dim, 0)
            found[f"{name}.step_bias"] = module.dt_bias[:, None].expand(-1, key_dim)
    return found
