"""What the layers of the reader are made of: how a stream is cut, norms, rotary position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, slots=True)
class Layout:
    """How a stream is cut: what each token may see, and where its position counts from."""

    position: torch.Tensor  # [B, L] rotary position
    start: torch.Tensor  # [B, L] bool, the recurrent state is zero before this token
    history: torch.Tensor  # [B, L] earlier tokens the short conv may read
    mask: torch.Tensor  # [B, 1, L, L] bool, what attention sees

    @classmethod
    def of(
        cls, group: torch.Tensor, position: torch.Tensor, visible: torch.Tensor | None = None
    ) -> Layout:
        """Cut where `group` changes; positions count from each cut. `visible` may hide keys."""
        length = group.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=group.device).tril()
        mask = (group[:, :, None] == group[:, None, :]) & causal
        if visible is not None:
            own = torch.eye(length, dtype=torch.bool, device=group.device)
            mask = mask & (visible | own)
        return cls(position, position == 0, position, mask[:, None])


def compute_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype that products of `x` run in: autocast's where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class Norm(nn.Module):
    """Zero-centred RMS norm in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis of x."""
        normed = F.rms_norm(x.float(), (x.shape[-1],), 1.0 + self.weight.float(), self.eps)
        return normed.to(compute_dtype(x))


class GatedNorm(nn.Module):
    """RMS norm over a value head, then times SiLU (or the sigmoid) of the gate."""

    def __init__(self, size: int, eps: float, *, sigmoid: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.activation = F.sigmoid if sigmoid else F.silu
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis of x, then gate; fp32."""
        normed = F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps)
        return normed * self.activation(gate.float())


Mixed = tuple[torch.Tensor, ...]


def merge(interior: torch.Tensor, isolated: Mixed, live: Mixed) -> Mixed:
    """Take the isolated stream's tensors at interiors, the live stream's elsewhere."""
    return tuple(
        torch.where(interior.reshape(*interior.shape, *([1] * (b.dim() - 2))), a, b)
        for a, b in zip(isolated, live, strict=True)
    )


def rotate(x: torch.Tensor, position: torch.Tensor, dims: int, theta: float) -> torch.Tensor:
    """Rotary position on the first `dims` of [B, L, heads, size], pairs (i, i + dims / 2)."""
    steps = torch.arange(0, dims, 2, device=x.device, dtype=torch.float32)
    angle = position[..., None].float() * theta ** (-steps / dims)
    cos, sin = angle.cos()[:, :, None], angle.sin()[:, :, None]
    half = dims // 2
    one, two, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = torch.cat((one * cos - two * sin, two * cos + one * sin), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)
