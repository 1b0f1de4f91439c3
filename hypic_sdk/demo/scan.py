"""Linear attention of every kind as a chunked scan in plain torch, fit for training.

A decay is one number a head or one a key channel; with `beta` a token erases what its key reads.

Dims: B batch, L tokens, H heads, N chunks, C tokens a chunk, K key size, V value size; G is 1 for a
decay a head and K for one a channel. All arithmetic is in the dtype of the inputs with autocast
off; callers pass fp32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

CHUNK_TOKENS = 64
RESET_LOG_DECAY = -40.0  # e^-40: what lay before is gone at any precision we use
_FEW_TOKENS = 2  # below, a product of matrices costs more than its numbers


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


def _mapped(transition: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A transition on a state, or on an earlier transition; one column is a diagonal."""
    return transition * state if transition.shape[-1] == 1 else transition @ state


def _states_before_chunks(
    transition: torch.Tensor, written: torch.Tensor, start: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fold chunk maps S -> M S + W into the state before every chunk, and the last state.

    M is a matrix, or without erase the decay of every row of the state, [B, H, N, G, 1].
    """
    fold = _fold_in_order if transition.device.type == "cpu" else _fold_by_doubling
    return fold(transition, written, start)


def _fold_by_doubling(
    transition: torch.Tensor, written: torch.Tensor, start: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fold as a scan of log2(N) steps of batched products: no loop over chunks, for a GPU."""
    num_chunks = transition.shape[2]
    reach = 1
    while reach < num_chunks:
        later_M, earlier_M = transition[:, :, reach:], transition[:, :, :-reach]
        later_W, earlier_W = written[:, :, reach:], written[:, :, :-reach]
        written = torch.cat((written[:, :, :reach], _mapped(later_M, earlier_W) + later_W), 2)
        transition = torch.cat((transition[:, :, :reach], _mapped(later_M, earlier_M)), 2)
        reach *= 2
    after = written if start is None else written + _mapped(transition, start[:, :, None])
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
        state = _mapped(chunk_map, state) + chunk_write
    return torch.stack(before, 2), state


def chunk_scan(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor | None = None,
    start: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run S <- e^g S; S <- S + k (beta (v - S^T k))^T; o = S^T q over all tokens.

    Args:
        query, key: [B, L, H, K], of unit length with `beta`; the query is scaled already.
        value: [B, L, H, V].
        log_decay: [B, L, H], or [B, L, H, K] for a decay a key channel; at most 0, of any size.
        beta: [B, L, H]; without it nothing is erased and S <- e^g S + k v^T.
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
    beta: torch.Tensor | None,
    start: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens = query.shape[1]
    missing = -num_tokens % CHUNK_TOKENS
    log_decay = log_decay[..., None] if log_decay.dim() == 3 else log_decay
    query, key, value, log_decay = (_to_chunks(x, missing) for x in (query, key, value, log_decay))
    total = log_decay.cumsum(-2)  # [B, H, N, C, G]
    grown, last = total.exp(), total[..., -1:, :]
    key_to_end = (key * (last - total).exp()).transpose(-1, -2)
    transition = last.exp().transpose(-1, -2)  # [B, H, N, G, 1]
    if beta is None:
        (scores,) = _decayed_products((query,), key, total)
        before, end = _states_before_chunks(transition, key_to_end @ value, start)
        new_value = value
    else:
        strength = _to_chunks(beta[..., None], missing)
        key_beta = key * strength
        scores, erased = _decayed_products((query, key_beta), key, total)
        inverse = _UnitLowerInverse.apply(  # type: ignore[no-untyped-call]  # torch leaves it so
            erased.tril(-1)
        )
        value_local = inverse @ (value * strength)
        key_local = inverse @ (key_beta * grown)
        identity = torch.eye(key.shape[-1], dtype=key.dtype, device=key.device)
        transition = transition * identity - key_to_end @ key_local
        before, end = _states_before_chunks(transition, key_to_end @ value_local, start)
        new_value = value_local - key_local @ before
    output = (query * grown) @ before + scores @ new_value
    output = output.flatten(2, 3)[:, :, :num_tokens].transpose(1, 2)
    return output, end


def _decayed_products(
    rows: tuple[torch.Tensor, ...], key: torch.Tensor, total: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """For each of `rows`: sum over k of row_ik key_jk e^(total_ik - total_jk), zero for j > i.

    Args:
        rows: each [B, H, N, C, K]; key: the same; total: [B, H, N, C, G], falling in C.
    Returns:
        each [B, H, N, C, C].
    """
    if total.shape[-1] > 1:
        return _channel_products(torch.stack(rows, 3), key[:, :, :, None], total[:, :, :, None])
    since = total - total.transpose(-1, -2)
    causal = torch.ones(since.shape[-2:], dtype=torch.bool, device=key.device).tril()
    decay = since.masked_fill(~causal, -torch.inf).exp()
    turned_key = key.transpose(-1, -2)
    return tuple((row @ turned_key) * decay for row in rows)


def _channel_products(
    rows: torch.Tensor, key: torch.Tensor, total: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The same, decayed by channel; blocks of twice the size are made of pairs of blocks.

    Between the halves of a pair decays are counted from the border, so that no exponent is above
    zero, however fast a channel decays.

    Args:
        rows: [B, H, N, R, C, K]; key, total: [B, H, N, 1, C, K].
    """
    products = (rows * key).sum(-1)[..., None, None]  # [B, H, N, R, C, 1, 1]
    span = 1
    while span < rows.shape[-2]:
        (_, late), (early, _), (first, second) = (
            x.unflatten(-2, (-1, 2, span)).unbind(-3) for x in (rows, key, total)
        )
        border = first[..., -1:, :]
        late, early = late * (second - border).exp(), early * (border - first).exp()
        if span <= _FEW_TOKENS:
            corner = (late[..., :, None, :] * early[..., None, :, :]).sum(-1)
        else:
            corner = late @ early.transpose(-1, -2)
        upper, under = products[..., 0::2, :, :], products[..., 1::2, :, :]
        top = torch.cat((upper, torch.zeros_like(upper)), -1)
        products = torch.cat((top, torch.cat((corner, under), -1)), -2)
        span *= 2
    return products.squeeze(-3).unbind(3)


def _to_chunks(x: torch.Tensor, missing: int) -> torch.Tensor:
    """[B, L, H, D] to [B, H, N, C, D], padded with zeros (no decay, no write)."""
    x = F.pad(x.transpose(1, 2), (0, 0, 0, missing))
    return x.reshape(*x.shape[:2], -1, CHUNK_TOKENS, x.shape[-1])


def token_scan(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor | None = None,
    start: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same map token by token: the definition."""
    batch, num_tokens, num_heads, key_size = key.shape
    state = start
    if state is None:
        state = value.new_zeros(batch, num_heads, key_size, value.shape[-1])
    decay = (log_decay[..., None] if log_decay.dim() == 3 else log_decay).exp()[..., None]
    outputs = []
    for i in range(num_tokens):
        state = state * decay[:, i]
        write = value[:, i]
        if beta is not None:
            read = torch.einsum("bhkv,bhk->bhv", state, key[:, i])
            write = beta[:, i, :, None] * (write - read)
        state = state + key[:, i, :, :, None] * write[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, i]))
    return torch.stack(outputs, 1), state


def transition_norm(
    key: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor | None = None
) -> torch.Tensor:
    """Spectral norm of the product of all tokens' transitions, [B, H]."""
    batch, _, num_heads, key_size = key.shape
    eye = torch.eye(key_size, dtype=key.dtype, device=key.device)
    eye = eye.expand(batch, num_heads, key_size, key_size)
    zeros = torch.zeros_like(key)
    _, product = chunk_scan(zeros, key, zeros, log_decay, beta, eye)
    return torch.linalg.matrix_norm(product, 2)
