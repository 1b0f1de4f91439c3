"""At what shapes ops are measured, and what a case of one is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

Tensors = Mapping[str, torch.Tensor]

# relative RMS errors that outputs may have, as the ops' own tests allow them (tests/kernels,
# tests/gpu): each is below the 1 % by which a scale or a coefficient may be off, but for experts
EXACT = 0.0  # ids, choices, copies
IN_FP32 = 1e-6  # computed in 32 bits and kept in them
KEPT = 2e-3  # states and transitions: their products' operands are rounded to 11 bits
ROUNDED = 2**-7  # kept in bf16
GROUPED = 2**-6  # kept in bf16, by way of inner rows in bf16


@dataclass(frozen=True, slots=True)
class Shapes:
    """One model, and how much of it a case runs."""

    width: int  # D
    num_key_heads: int  # Hk
    num_heads: int  # H
    head_size: int  # K = V of a state
    num_query_heads: int  # Q
    num_kv_heads: int  # G
    attention_size: int  # E
    num_attention: int  # A
    num_experts: int
    top_k: int
    inner: int  # of an expert
    rows: int  # of a cold forward
    segment: int  # tokens of a segment
    requests: int  # that decode
    context: int  # positions of a request
    gaps: int  # of an assembled request
    run: int  # live rows between two gaps
    vocab: int  # ids that logits are of

    @property
    def channels(self) -> int:
        """C of the conv."""
        return (2 * self.num_key_heads + self.num_heads) * self.head_size

    @property
    def projected(self) -> int:
        """Outputs of a linear layer's one projection: channels, gate, strength and decay."""
        return self.channels + self.num_heads * (self.head_size + 2)

    @property
    def state(self) -> int:
        """Numbers in one layer's state."""
        return self.num_heads * self.head_size**2


# Qwen3.5-35B-A3B by its published config
LARGE = Shapes(
    2048, 16, 32, 128, 16, 2, 256, 10, 256, 8, 512, 8192, 2048, 64, 8192, 10, 12, 248_320
)
# the sizes of a head as there, little of all else: what the self-test runs
SMALL = Shapes(96, 1, 2, 128, 4, 2, 256, 2, 8, 2, 48, 112, 80, 3, 1300, 3, 12, 1000)
# for a CPU
TINY = Shapes(40, 1, 2, 16, 4, 2, 24, 2, 4, 2, 16, 48, 24, 3, 40, 2, 5, 300)


@dataclass(frozen=True, slots=True)
class Case:
    """One op at one shape.

    `draw` makes inputs on a device in a dtype; `bind` makes of them a call that returns what it
    wrote, in the order of `bounds`.
    """

    op: str
    name: str
    num_bytes: int
    num_flops: int
    draw: Callable[[torch.device, torch.dtype], Tensors]
    bind: Callable[[Tensors], Callable[[], Sequence[torch.Tensor]]]
    # of each output, the relative RMS error that it may have on inputs in bf16
    bounds: Mapping[str, float] = field(default_factory=lambda: {"rows": ROUNDED})

    def __str__(self) -> str:
        return f"{self.op} {self.name}"


def normal(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, device=device, dtype=dtype)


def drawn(**shapes: tuple[int, ...]) -> Callable[[torch.device, torch.dtype], Tensors]:
    """Standard normal inputs, by name; weights [outputs, inputs] are scaled by their inputs."""

    def draw(device: torch.device, dtype: torch.dtype) -> Tensors:
        found = {name: normal(device, dtype, *shape) for name, shape in shapes.items()}
        return {
            name: x / x.shape[-1] ** 0.5 if name.startswith("weight") else x
            for name, x in found.items()
        }

    return draw
