"""Muon for matrices, Adam for the rest, written so that a CUDA graph can capture a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Bring the singular values of [n, rows, columns] matrices near one."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.transpose(-1, -2) if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(-1, -2) if tall else x


class Optimizer:
    """Clips by the total norm and skips a step whose gradients are not finite."""

    def __init__(self, model: nn.Module, *, clip: float = 1.0, decay: float = 0.05) -> None:
        self.clip, self.decay = clip, decay
        matrices: dict[torch.Size, list[nn.Parameter]] = {}
        self.rest: list[nn.Parameter] = []
        for name, weight in model.named_parameters():
            small = min(weight.shape[0], weight.shape[-1]) < 16
            if weight.dim() == 2 and "embed" not in name and not small:
                matrices.setdefault(weight.shape, []).append(weight)
            else:
                self.rest.append(weight)
        self.matrices = list(matrices.values())
        self.momentum = [torch.zeros_like(torch.stack(list(group))) for group in self.matrices]
        self.first = [torch.zeros_like(w) for w in self.rest]
        self.second = [torch.zeros_like(w) for w in self.rest]
        device = self.rest[0].device
        self.rate = torch.zeros((), device=device)
        self.count = torch.zeros((), device=device)
        self.skipped = torch.zeros((), device=device)
        self.grad_norm = torch.zeros((), device=device)

    def state(self) -> list[torch.Tensor]:
        """Return all tensors that a later `load` needs."""
        return [*self.momentum, *self.first, *self.second, self.count, self.skipped]

    @torch.no_grad()
    def load(self, state: Sequence[torch.Tensor]) -> None:
        """Take up the tensors of `state`."""
        for own, kept in zip(self.state(), state, strict=True):
            own.copy_(kept)

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients at the learning rate in `rate`."""
        everything = [w for group in self.matrices for w in group] + self.rest
        grads = [w.grad for w in everything if w.grad is not None]
        assert len(grads) == len(everything)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        fine = torch.isfinite(norm)
        scale = torch.where(fine, (self.clip / (norm + 1e-6)).clamp(max=1.0), 0.0)
        for grad in grads:
            grad.nan_to_num_(0.0, 0.0, 0.0)
        torch._foreach_mul_(grads, scale)
        self.grad_norm.copy_(norm)
        self.skipped.add_(~fine)
        self.count.add_(fine)
        rate = self.rate * fine
        for group, momentum in zip(self.matrices, self.momentum, strict=True):
            self._muon(group, momentum, rate)
        self._adam(rate)

    def _muon(
        self, group: Sequence[nn.Parameter], momentum: torch.Tensor, rate: torch.Tensor
    ) -> None:
        grads = torch.stack([w.grad for w in group if w.grad is not None])
        momentum.lerp_(grads, 0.05)
        update = orthogonalise(grads.lerp(momentum, 0.95)).float()
        # the size Adam's updates have (Muon is scalable for LLM training, section 2.2)
        factor = 0.2 * max(grads.shape[-2:]) ** 0.5
        for weight, change in zip(group, update, strict=True):
            weight.mul_(1 - rate * self.decay).sub_(change * (rate * factor))

    def _adam(self, rate: torch.Tensor) -> None:
        grads = [w.grad for w in self.rest if w.grad is not None]
        torch._foreach_lerp_(self.first, grads, 0.1)
        torch._foreach_mul_(self.second, 0.98)
        torch._foreach_addcmul_(self.second, grads, grads, 0.02)
        count = self.count.clamp(min=1)
        step = rate / (1 - 0.9**count)
        spread = torch._foreach_sqrt(self.second)
        torch._foreach_div_(spread, (1 - 0.98**count).sqrt())
        torch._foreach_add_(spread, 1e-8)
        change = torch._foreach_div(self.first, spread)
        torch._foreach_mul_(change, step)
        for weight, step_of_weight in zip(self.rest, change, strict=True):
            weight.sub_(step_of_weight)


class Average:
    """Running average of the weights over the last steps."""

    def __init__(self, model: nn.Module, keep: float, start: float = 0.5) -> None:
        self.keep, self.start = keep, start
        self._live: list[torch.Tensor] = list(model.parameters())
        self.weights = [weight.detach().clone() for weight in self._live]

    @torch.no_grad()
    def update(self, share: float) -> None:
        """Take in the weights of a step; before `start` of the training, follow them."""
        keep = self.keep if share >= self.start else 0.0
        torch._foreach_lerp_(self.weights, self._live, 1.0 - keep)

    @torch.no_grad()
    def follow(self) -> None:
        """Take the live weights as the average."""
        torch._foreach_copy_(self.weights, self._live)

    @torch.no_grad()
    def put_into(self, model: nn.Module) -> None:
        """Replace the model's weights by the average."""
        for weight, mean in zip(model.parameters(), self.weights, strict=True):
            weight.copy_(mean)
