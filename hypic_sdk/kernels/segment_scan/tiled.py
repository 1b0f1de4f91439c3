"""The recurrence in tiles of up to 64 tokens: each tile becomes one affine map of the state.

Within a tile, with the cumulated decay G (a diagonal, or a number), every token's read and the
state after the tile are affine in the state S before it:

    outputs = local + read S,      S after the tile = step S + write

`prepare_tiles` computes (local, read, step, write) of all tiles at once; only the chain of S over
the tiles is sequential.  With erase this is the WY form: pseudo-values U solve
(I + A) U = b (v - (G k)^T S) with A strictly lower triangular.  Exponents are differences of
cumulated logs and never positive, so nothing overflows, however strong the decay.

Source: HYPIC section 4.1; Yang et al. 2024 (DeltaNet), Kimi Linear 2025 (diagonal decay).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hypic_sdk.kernels.scan_inputs import MIN_LOG_DECAY, ScanInputs, to_unit, token_log_decay

TILE_TOKENS = 64
# tiles prepared together: bounds the scratch memory of a long stretch; on a GPU launches count more
_GROUP_TILES = 4
_CUDA_GROUP_TILES = 32
_LEAF_TOKENS = 8  # below this size decays of pairs are written out


@dataclass(frozen=True, slots=True)
class Tiles:
    """N consecutive tiles of C tokens as affine maps of the state."""

    local: torch.Tensor  # [N, H, C, V]
    read: torch.Tensor  # [N, H, C, K]
    step: torch.Tensor  # [N, H, K, K] with erase, else the factors [N or 1, H, K or 1, 1]
    write: torch.Tensor  # [N, H, K, V]


def tiled_scan(
    inputs: ScanInputs, state_HKV: torch.Tensor, transition_HKK: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Run all tokens of `inputs` from a start state, on a grid of tiles counted from the first.

    Args:
        state_HKV: [H, K, V] in the work dtype; it is read only.
        transition_HKK: of a dense recurrence, the transition of the tokens so far; carried along
            as K further columns of the state that nothing is written to.
    Returns:
        outputs [L, H, V], the state and the transition after the last token.
    """
    num_tokens = inputs.num_tokens
    if not num_tokens:
        return state_HKV.new_empty(inputs.value.shape), state_HKV, transition_HKK
    value_size = state_HKV.shape[2]
    carry = state_HKV.clone()
    if transition_HKK is not None:
        carry = torch.cat((state_HKV, transition_HKK), dim=-1)
    outputs = []
    group_tokens = TILE_TOKENS * (_CUDA_GROUP_TILES if carry.is_cuda else _GROUP_TILES)
    for start in range(0, num_tokens, group_tokens):
        part = inputs.rows(start, min(start + group_tokens, num_tokens))
        part_outputs, carry = _scan_group(part, carry, value_size)
        outputs.append(part_outputs)
    outputs_LHV = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if transition_HKK is None:
        return outputs_LHV, carry, None
    return outputs_LHV, carry[..., :value_size], carry[..., value_size:]


def tile_tokens(num_tokens: int) -> int:
    """Tokens a tile: a function of the stretch's length alone, so that its bits are too."""
    return TILE_TOKENS if num_tokens > 32 else 32 if num_tokens > 16 else 16


def _scan_group(
    inputs: ScanInputs, carry_HKX: torch.Tensor, value_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    tiles = prepare_tiles(inputs, carry_HKX.dtype)
    num_tiles, num_heads, num_rows, _ = tiles.local.shape
    starts = carry_HKX.new_empty((num_tiles + 1, *carry_HKX.shape))
    starts[0] = carry_HKX
    starts[1:, ..., :value_size] = tiles.write
    starts[1:, ..., value_size:] = 0.0
    for tile in range(num_tiles):
        if inputs.is_dense:
            starts[tile + 1].baddbmm_(tiles.step[tile], starts[tile])
        else:
            step = tiles.step[tile if len(tiles.step) > 1 else 0]
            starts[tile + 1].add_(starts[tile] * step)
    incoming = starts[:-1, ..., :value_size].flatten(0, 1)
    outputs = tiles.local.flatten(0, 1).baddbmm_(tiles.read.flatten(0, 1), incoming)
    outputs = outputs.view(num_tiles, num_heads, num_rows, value_size).transpose(1, 2)
    return outputs.flatten(0, 1)[: inputs.num_tokens], starts[-1]


def prepare_tiles(inputs: ScanInputs, dtype: torch.dtype) -> Tiles:
    """All tiles of a stretch, in `dtype`; the last is filled up with tokens that do nothing."""
    num_rows = tile_tokens(inputs.num_tokens)
    query, key = (_in_tiles(x, num_rows, dtype) for x in (inputs.query, inputs.key))
    if inputs.unit_keys:
        query, key = to_unit(query), to_unit(key)
    if inputs.scale != 1.0:
        query = query * inputs.scale
    value = _in_tiles(inputs.value, num_rows, dtype)
    decay = _TileDecay.of(inputs, num_rows, dtype)
    read_scores, erase_scores = decay.scores(
        query, key, inputs.num_heads, with_keys=inputs.is_dense
    )
    groups = inputs.num_heads // key.shape[1]
    if groups > 1:
        query, key = (x.repeat_interleave(groups, dim=1) for x in (query, key))
    read, late_key = decay.since_start(query), decay.until_end(key)
    if inputs.erase is None:
        write = late_key.transpose(-1, -2) @ value
        return Tiles(read_scores @ value, read, decay.whole(), write)
    assert erase_scores is not None, "scores of keys come with erase"
    strength = _in_tiles(inputs.erase[..., None], num_rows, dtype)
    # (I + A)^-1 [b v | b G k]: what is written if the tile starts from zero, and what it erases
    targets = torch.cat((value * strength, decay.since_start(key) * strength), dim=-1)
    solved = torch.linalg.solve_triangular(
        erase_scores * strength, targets, upper=False, unitriangular=True
    )
    seen = read_scores @ solved
    moved = late_key.transpose(-1, -2) @ solved
    value_size = value.shape[-1]
    kept = torch.diag_embed(decay.whole().expand(*moved.shape[:-1], 1)[..., 0])
    return Tiles(
        seen[..., :value_size].contiguous(),
        read - seen[..., value_size:],
        kept - moved[..., value_size:],
        moved[..., :value_size],
    )


def _in_tiles(x_LHE: torch.Tensor, num_rows: int, dtype: torch.dtype) -> torch.Tensor:
    """[L, H, E] as [N, H, C, E]: a fresh, aligned copy with zeros behind the last token."""
    num_tokens, num_heads, size = x_LHE.shape
    full, rest = divmod(num_tokens, num_rows)
    tiles = x_LHE.new_empty((full + bool(rest), num_heads, num_rows, size), dtype=dtype)
    whole = x_LHE[: full * num_rows].unflatten(0, (full, num_rows))
    tiles[:full] = whole.transpose(1, 2)
    if rest:
        tiles[full, :, :rest] = x_LHE[full * num_rows :].transpose(0, 1)
        tiles[full, :, rest:] = 0.0
    return tiles


@dataclass(frozen=True, slots=True)
class _TileDecay:
    """Decay between any two tokens of a tile, from logs cumulated in fp64.

    fp64, because a weak decay after strong ones is a small difference of large sums.
    """

    cumulated: torch.Tensor | None  # [N or 1, H, C, K or 1] fp64, token itself included
    dtype: torch.dtype
    device: torch.device
    factors: torch.Tensor | None = None  # of each token, [N, H, C, K] in `dtype`, if diagonal

    @classmethod
    def of(cls, inputs: ScanInputs, num_rows: int, dtype: torch.dtype) -> _TileDecay:
        log_decay, device = token_log_decay(inputs), inputs.value.device
        if log_decay is None:
            return cls(None, dtype, device)
        if log_decay.ndim == 2:
            log_decay = log_decay[..., None]
        if log_decay.ndim == 3:
            logs = _in_tiles(log_decay, num_rows, torch.float64).clamp_min_(MIN_LOG_DECAY)
            factors = logs.to(dtype).exp() if logs.shape[-1] > 1 else None
            return cls(logs.cumsum(2), dtype, device, factors)
        # constant: the last tile's empty rows must not decay the state, so count real tokens
        count = torch.ones((inputs.num_tokens, 1, 1), dtype=torch.float64, device=device)
        counted = _in_tiles(count, num_rows, torch.float64).cumsum(2)
        log_decay = log_decay.double().clamp_min(MIN_LOG_DECAY)
        return cls(counted * log_decay[:, None, None], dtype, device)

    def _factor(self, log_factor: torch.Tensor) -> torch.Tensor:
        return log_factor.to(self.dtype).exp()

    def since_start(self, x: torch.Tensor) -> torch.Tensor:
        """Rows decayed from the tile's start to their token."""
        return x if self.cumulated is None else x * self._factor(self.cumulated)

    def until_end(self, x: torch.Tensor) -> torch.Tensor:
        """Rows decayed from their token to the tile's end."""
        if self.cumulated is None:
            return x
        return x * self._factor(self.cumulated[:, :, -1:] - self.cumulated)

    def whole(self) -> torch.Tensor:
        """Factors of the state over the tile: [N or 1, H or 1, K or 1, 1]."""
        if self.cumulated is None:
            return torch.ones((1, 1, 1, 1), dtype=self.dtype, device=self.device)
        return self._factor(self.cumulated[:, :, -1:]).transpose(-1, -2)

    def scores(
        self, query: torch.Tensor, key: torch.Tensor, num_heads: int, *, with_keys: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Products of each query (and key) with the keys not after it, decayed: [N, H, C, C].

        What lies above the diagonal is zero.  Query and key have Hk heads, the result `num_heads`.
        """
        rows = torch.cat((query, key), dim=2) if with_keys else query
        diagonal = self.cumulated is not None and self.cumulated.shape[-1] > 1
        score = self._diagonal_scores if diagonal else self._scalar_scores
        products = score(rows, key, num_heads)
        if not with_keys:
            return products, None
        num_rows = key.shape[2]
        return products[:, :, :num_rows], products[:, :, num_rows:]

    def _scalar_scores(self, rows: torch.Tensor, key: torch.Tensor, num_heads: int) -> torch.Tensor:
        num_rows = key.shape[2]
        copies = rows.shape[2] // num_rows
        products = rows @ key.transpose(-1, -2)
        if self.cumulated is None:
            products = products.unflatten(2, (copies, num_rows)).tril_().flatten(2, 3)
            return products.repeat_interleave(num_heads // key.shape[1], dim=1)
        log_factor = self.cumulated - self.cumulated.transpose(-1, -2)
        later = torch.ones((num_rows, num_rows), dtype=torch.bool, device=key.device).triu_(1)
        factor = self._factor(log_factor.masked_fill_(later, -torch.inf))
        heads = (key.shape[1], num_heads // key.shape[1])
        products = products.unflatten(2, (copies, num_rows))[:, :, None]
        return (products * factor.unflatten(1, heads)[:, :, :, None]).flatten(1, 2).flatten(2, 3)

    def _diagonal_scores(
        self, rows: torch.Tensor, key: torch.Tensor, num_heads: int
    ) -> torch.Tensor:
        """By halves: rows of a later half meet keys of the half before it at their border.

        Both exponents, border to row and key to border, are then at most 0, and each half is a
        matrix product.  Pairs inside a leaf have their decay written out.
        """
        assert self.cumulated is not None, "a diagonal decay is there"
        groups = num_heads // key.shape[1]
        if groups > 1:
            rows, key = (x.repeat_interleave(groups, dim=1) for x in (rows, key))
        num_rows = key.shape[2]
        copies = rows.shape[2] // num_rows
        rows = rows.unflatten(2, (copies, num_rows))
        scores = key.new_zeros((*rows.shape[:4], num_rows))
        half = num_rows // 2
        while half >= _LEAF_TOKENS:
            self._half_scores(rows, key, half, scores)
            half //= 2
        self._leaf_scores(rows, key, scores)
        return scores.flatten(2, 3)

    def _half_scores(
        self, rows: torch.Tensor, key: torch.Tensor, half: int, scores: torch.Tensor
    ) -> None:
        assert self.cumulated is not None, "a diagonal decay is there"
        blocks = (key.shape[2] // (2 * half), 2, half)
        logs = self.cumulated.unflatten(2, blocks)  # [N, H, B, 2, half, K]
        border = logs[:, :, :, 0, -1:]
        late = rows.unflatten(3, blocks)[:, :, :, :, 1]  # [N, H, copies, B, half, K]
        late = late * self._factor(logs[:, :, :, 1] - border)[:, :, None]
        early = key.unflatten(2, blocks)[:, :, :, 0] * self._factor(border - logs[:, :, :, 0])
        late = late.transpose(2, 3).flatten(3, 4)  # [N, H, B, copies * half, K]
        products = (late @ early.transpose(-1, -2)).unflatten(3, (-1, half)).transpose(2, 3)
        for block in range(blocks[0]):
            first = 2 * half * block
            place = scores[:, :, :, first + half : first + 2 * half, first : first + half]
            place.copy_(products[:, :, :, block])

    def _leaf_scores(self, rows: torch.Tensor, key: torch.Tensor, scores: torch.Tensor) -> None:
        """Pairs less than a leaf apart: keys move on token by token and decay on their way."""
        assert self.factors is not None, "a diagonal decay is there"
        leaves = (-1, _LEAF_TOKENS)
        reads = rows.unflatten(3, leaves)  # [N, H, copies, B, leaf, K]
        factors = self.factors.unflatten(2, leaves)  # [N, H, B, leaf, K]
        moved = key.unflatten(2, leaves)
        square = scores.unflatten(4, leaves).unflatten(3, leaves)
        # [N, H, copies, leaf, leaf, B]: the leaves on the diagonal of every tile
        square = square.diagonal(dim1=3, dim2=5)
        for apart in range(_LEAF_TOKENS):
            if apart:
                moved = moved[:, :, :, :-1] * factors[:, :, :, apart:]
            products = (reads[:, :, :, :, apart:] * moved[:, :, None]).sum(-1)
            square.diagonal(-apart, dim1=3, dim2=4).copy_(products)
