"""Draws and oracles for recurrences: awkward sizes, every family, explicit T_i and u_i in fp64."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from hypothesis import strategies as st

from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.families.registry import FAMILIES

# relative RMS to the fp64 oracle: design 3.7; fp64 sums of some hundred terms stay far below
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}


@dataclass(frozen=True)
class Shape:
    """State heads and sizes, K never V."""

    H: int
    K: int
    V: int


SHAPES = (Shape(2, 5, 3), Shape(3, 8, 13), Shape(4, 17, 6), Shape(1, 3, 9))


def shapes() -> st.SearchStrategy[Shape]:
    """One of some awkward shapes; with even H some families have half as many key heads."""
    return st.sampled_from(SHAPES)


def seeds() -> st.SearchStrategy[int]:
    """Seeds of a generator."""
    return st.integers(0, 2**31)


def drawn(
    family: str, num_tokens: int, shape: Shape, seed: int, dtype: torch.dtype = torch.float64
) -> Recurrence:
    """Random inputs of a family."""
    rng = torch.Generator().manual_seed(seed)
    return FAMILIES[family].sample(rng, num_tokens, shape.H, shape.K, shape.V, dtype)


def with_decay(recurrence: Recurrence, strength: float, seed: int) -> Recurrence:
    """The same with decays of -`strength` a token; where decays vary, half are -1e-6 instead."""
    rng = torch.Generator().manual_seed(seed)

    def mixed(x: torch.Tensor, sign: float) -> torch.Tensor:
        weak = torch.rand(x.shape, generator=rng) < 0.5
        return sign * torch.where(weak, 1e-6, strength).to(x.dtype)

    if recurrence.steps is not None:
        return replace(recurrence, steps=mixed(recurrence.steps, 1.0))
    if recurrence.constant_log_decay is not None:
        constant = torch.full_like(recurrence.constant_log_decay, -strength)
        return replace(recurrence, constant_log_decay=constant)
    if recurrence.log_decay is None:
        return recurrence
    return replace(recurrence, log_decay=mixed(recurrence.log_decay, -1.0))


def in_fp64(recurrence: Recurrence) -> Recurrence:
    """The same numbers, taken up to fp64."""
    values = {field.name: getattr(recurrence, field.name) for field in fields(recurrence)}
    tensors = {name: x.double() for name, x in values.items() if isinstance(x, torch.Tensor)}
    return replace(recurrence, **tensors)


def random_state(shape: Shape, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A state [H, K, V] of size about 1."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape.H, shape.K, shape.V, generator=rng, dtype=dtype)


@dataclass(frozen=True)
class ExplicitTokens:
    """Every token's T_i and u_i written out: S_i = T_i S_{i-1} + u_i, o_i = q_i^T S_i, in fp64."""

    T: torch.Tensor  # [L, H, K, K]
    u: torch.Tensor  # [L, H, K, V]
    q: torch.Tensor  # [L, H, K]

    def run(self, state: torch.Tensor, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs [stop - start, H, V] and the state after tokens [start, stop)."""
        outputs = []
        for i in range(start, stop):
            state = torch.einsum("hij,hjv->hiv", self.T[i], state) + self.u[i]
            outputs.append(torch.einsum("hk,hkv->hv", self.q[i], state))
        return torch.stack(outputs) if outputs else state.new_zeros(0, *self.u.shape[1::2]), state

    def transition(self, start: int, stop: int) -> torch.Tensor:
        """The product of T_i, the latest on the left: [H, K, K]."""
        product = torch.eye(self.T.shape[-1], dtype=torch.float64).expand(self.T.shape[1:])
        for i in range(start, stop):
            product = torch.einsum("hij,hjk->hik", self.T[i], product)
        return product

    def zeros(self) -> torch.Tensor:
        """The zero state."""
        return torch.zeros(self.u.shape[1:], dtype=torch.float64)


def explicit_tokens(recurrence: Recurrence) -> ExplicitTokens:
    """The definition, written without any code of the package."""
    r = in_fp64(recurrence)
    num_tokens, num_heads, _ = r.value.shape
    query, key = r.query, r.key
    if r.unit_keys:
        query = query / (query.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
        key = key / (key.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    head_of = torch.arange(num_heads) // (num_heads // key.shape[1])
    query, key = query[:, head_of], key[:, head_of]
    shape = (num_tokens, num_heads, key.shape[-1])
    log_decay = torch.zeros(shape, dtype=torch.float64)
    if r.steps is not None:
        log_decay = torch.einsum("lh,hk->lhk", r.steps, r.rates)
    elif r.constant_log_decay is not None:
        log_decay = log_decay + r.constant_log_decay[:, None]
    elif r.log_decay is not None:
        log_decay = log_decay + (r.log_decay if r.log_decay.ndim == 3 else r.log_decay[..., None])
    T = torch.diag_embed(log_decay.exp())
    write = r.value
    if r.erase is not None:
        outer = torch.einsum("lh,lhi,lhj->lhij", r.erase, key, key)
        T = torch.einsum("lhij,lhjk->lhik", torch.eye(key.shape[-1]).double() - outer, T)
        write = r.erase[..., None] * r.value
    return ExplicitTokens(T, torch.einsum("lhk,lhv->lhkv", key, write), query * r.scale)
