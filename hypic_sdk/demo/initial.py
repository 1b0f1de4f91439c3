"""The reader's first weights, and the decays that training leaves alone."""

from __future__ import annotations

import torch

from hypic_sdk.demo.reader_model import LinearLayer, Reader, ReaderConfig

#: a token's log decay in the heads of the first key head, whose decay is fixed: at 256 tokens such
#: a head keeps e^-0.12 and e^-0.5 of what was written
SLOW_STEPS = (1 / 2048, 1 / 512)


def slow_heads(config: ReaderConfig) -> int:
    """Return how many heads of a linear layer keep a fixed slow decay: those of one key head."""
    return config.num_value_heads // config.num_key_heads


def hold_slow_decays(reader: Reader) -> None:
    """Zero the gradients of the fixed decays; call it before every optimizer step."""
    num_slow = slow_heads(reader.config)
    for layer in reader.layers:
        if isinstance(layer.mixer, LinearLayer):
            for weight in layer.mixer.decay_weights:
                if weight.grad is not None:
                    weight.grad[:num_slow] = 0.0


def init_weights(reader: Reader, seed: int) -> None:
    """Small normal weights; slow decays, so that heads remember over hundreds of tokens."""
    generator = torch.Generator().manual_seed(seed)
    depth = reader.config.num_layers
    for name, weight in reader.named_parameters():
        if name.endswith(("A_log", "dt_bias")):
            continue
        if name.endswith("conv1d.weight"):
            weight.data.uniform_(-0.5, 0.5, generator=generator)
        elif weight.dim() == 2:
            inward = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
            std = 0.02 / (2 * depth) ** 0.5 if inward else 0.02
            weight.data.normal_(0.0, std, generator=generator)
    for layer in reader.layers:
        mixer = layer.mixer
        if not isinstance(mixer, LinearLayer):
            continue
        heads = reader.config.num_value_heads
        low, high = torch.tensor(1e-3).log(), torch.tensor(1e-1).log()
        step = (low + (high - low) * torch.rand(heads, generator=generator)).exp()
        scale = (1.0 + torch.rand(heads, generator=generator)).log()
        num_slow = slow_heads(reader.config)
        step[:num_slow] = torch.tensor(SLOW_STEPS).repeat(num_slow)[:num_slow]
        scale[:num_slow] = 0.0
        mixer.in_proj_a.weight.data[:num_slow] = 0.0
        mixer.dt_bias.data.copy_(step + torch.log(-torch.expm1(-step)))
        mixer.A_log.data.copy_(scale)
