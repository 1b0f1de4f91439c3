"""The gated delta rule as a chunked scan in plain torch, fit for training.

Dims: B batch, L tokens, H heads, N chunks, C tokens a chunk, K key size, V value size. All
arithmetic is in the dtype of the inputs with autocast off; callers pass fp32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

CHUNK_TOKENS = 64
RESET_LOG_DECAY = -40.0  # e^-40: what lay before is gone at any precision we use


class _UnitLowerInverse(torch.autograd.Function):
    """Inverse of I + A for strictly lower A, by forward substitution in blocks."""

    @staticmethod
    def forward(ctx: Any, lower: torch.Tensor) -> torch.Tensor:
        inverse = _invert_unit_lower(lower)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (inverse,) = ctx.saved_tensors
        turned = inverse.transpose(-1, -2)
        return -(turned @ grad @ turned).tril(-1)


def _invert_unit_lower(lower: torch.Tensor, base: int = 16) -> torch.Tensor:
    """Return (I + lower)^-1 exactly: rows within blocks of `base`, then pairs of blocks."""
    size = lower.shape[-1]
    base = min(base, size)
    blocks = _diagonal_blocks(lower, base)
    inverse = torch.eye(base, dtype=lower.dtype, device=lower.device).expand_as(blocks).clone()
    for row in range(1, base):
        known = inverse[..., :row, :row]
        inverse[..., row, :row] = -(blocks[..., row, :row, None] * known).sum(-2)
    while base < size:
        corner = _diagonal_blocks(lower, 2 * base)[..., base:, :base]
        upper, under = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        corner = -(under @ corner @ upper)
        top = torch.cat((upper, torch.zeros_like(upper)), -1)
        inverse = torch.cat((top, torch.cat((corner, under), -1)), -2)
        base *= 2
    return inverse.squeeze(-3)


def _diagonal_blocks(matrix: torch.Tensor, size: int) -> torch.Tensor:
    """[..., C, C] to its [..., C / size, size, size] blocks on the diagonal."""
    count = matrix.shape[-1] // size
    tiles = matrix.reshape(*matrix.shape[:-2], count, size, count, size)
    return torch.diagonal(tiles, dim1=-4, dim2=-2).movedim(-1, -3)


def _states_before_chunks(
    transition: torch.Tensor, written: torch.Tensor, start: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fold chunk maps S -> M S + W into the state before every chunk, and the last state.

    On a GPU the fold is a scan of log2(N) steps of batched products, so it has no loop over chunks.
    """
    if transition.device.type == "cpu":
        return _fold_in_order(transition, written, start)
    num_chunks = transition.shape[2]
    reach = 1
    while reach < num_chunks:
        later_M, earlier_M = transition[:, :, reach:], transition[:, :, :-reach]
        later_W, earlier_W = written[:, :, reach:], written[:, :, :-reach]
        written = torch.cat((written[:, :, :reach], later_M @ earlier_W + later_W), 2)
        transition = torch.cat((transition[:, :, :reach], later_M @ earlier_M), 2)
        reach *= 2
    after = written if start is None else written + transition @ start[:, :, None]
    first = torch.zeros_like(after[:, :, :1]) if start is None else start[:, :, None]
    return torch.cat((first, after[:, :, :-1]), 2), after[:, :, -1]


def _fold_in_order(
    transition: torch.Tensor, written: torch.Tensor, start: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same fold, chunk after chunk: less work, more steps."""
    state = torch.zeros_like(written[:, :, 0]) if start is None else start
    before = []
    for chunk_map, chunk_write in zip(transition.unbind(2), written.unbind(2), strict=True):
        before.append(state)
        state = chunk_map @ state + chunk_write
    return torch.stack(before, 2), state


def chunk_scan(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    start: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run S <- e^g S; S <- S + k (beta (v - S^T k))^T; o = S^T q over all tokens.

    Args:
        query, key: [B, L, H, K], unit length; the query is scaled already.
        value: [B, L, H, V].
        log_decay, beta: [B, L, H].
        start: [B, H, K, V], zero if absent.
    Returns:
        outputs [B, L, H, V] and the last state [B, H, K, V].
    """
    with torch.autocast(query.device.type, enabled=False):
        return _chunk_scan(query, key, value, log_decay, beta, start)


def _chunk_scan(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    start: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens = query.shape[1]
    missing = -num_tokens % CHUNK_TOKENS
    query, key, value, beta, log_decay = (
        _to_chunks(x, missing) for x in (query, key, value, beta[..., None], log_decay[..., None])
    )
    total = log_decay.squeeze(-1).cumsum(-1)  # [B, H, N, C]
    causal = torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool, device=query.device).tril()
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, -torch.inf).exp()
    key_beta = key * beta
    turned_key = key.transpose(-1, -2)
    inverse = _UnitLowerInverse.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        ((key_beta @ turned_key) * decay).tril(-1)
    )
    grown = total.exp()[..., None]
    value_local = inverse @ (value * beta)
    key_local = inverse @ (key_beta * grown)
    last = total[..., -1:]
    key_to_end = (key * (last - total).exp()[..., None]).transpose(-1, -2)
    identity = torch.eye(key.shape[-1], dtype=key.dtype, device=key.device)
    transition = last.exp()[..., None] * identity - key_to_end @ key_local
    before, end = _states_before_chunks(transition, key_to_end @ value_local, start)
    new_value = value_local - key_local @ before
    output = (query * grown) @ before + ((query @ turned_key) * decay) @ new_value
    output = output.flatten(2, 3)[:, :, :num_tokens].transpose(1, 2)
    return output, end


def _to_chunks(x: torch.Tensor, missing: int) -> torch.Tensor:
    """[B, L, H, D] to [B, H, N, C, D], padded with zeros (no decay, no write)."""
    x = F.pad(x.transpose(1, 2), (0, 0, 0, missing))
    return x.reshape(*x.shape[:2], -1, CHUNK_TOKENS, x.shape[-1])


def token_scan(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    start: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same map token by token: the definition."""
    batch, num_tokens, num_heads, key_size = key.shape
    state = start
    if state is None:
        state = value.new_zeros(batch, num_heads, key_size, value.shape[-1])
    outputs = []
    for i in range(num_tokens):
        state = state * log_decay[:, i, :, None, None].exp()
        read = torch.einsum("bhkv,bhk->bhv", state, key[:, i])
        delta = beta[:, i, :, None] * (value[:, i] - read)
        state = state + key[:, i, :, :, None] * delta[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, i]))
    return torch.stack(outputs, 1), state


def transition_norm(key: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Spectral norm of the product of all tokens' transitions, [B, H]."""
    batch, num_tokens, num_heads, key_size = key.shape
    eye = torch.eye(key_size, dtype=key.dtype, device=key.device)
    eye = eye.expand(batch, num_heads, key_size, key_size)
    zeros = key.new_zeros(batch, num_tokens, num_heads, key_size)
    _, product = chunk_scan(torch.zeros_like(key), key, zeros, log_decay, beta, eye)
    return torch.linalg.matrix_norm(product, 2)
