"""What `hypic bench kernels` runs of sampling: edits of logits, the choice, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hypic_sdk.bench.kernel_shapes import EXACT, IN_FP32, Case, Shapes, Tensors, normal
from hypic_sdk.kernels.sample.edits import Bans, Biases, LogitEdits, Masks, Penalties
from hypic_sdk.kernels.sample.op import adjust, logprobs, sample

_NUM_BEST = 5
_ALL_BUT_THE_LAST = 2**31 - 1  # ids of a word of a mask


def sampling_cases(s: Shapes) -> list[Case]:
    """All of them at these shapes, a row for each decoding request."""
    return [
        _adjust_case(s),
        _sample_case(s, "greedy", temperature=0.0, top_k=0, top_p=1.0),
        _sample_case(s, "top_k and top_p", temperature=1.0, top_k=20, top_p=0.95),
        _logprobs_case(s),
    ]


def _draw(s: Shapes) -> Callable[[torch.device, torch.dtype], Tensors]:
    """Logits come in fp32 whatever the model's dtype is."""

    def draw(device: torch.device, dtype: torch.dtype) -> Tensors:
        return {"logits": normal(device, torch.float32, s.requests, s.vocab)}

    return draw


def _adjust_case(s: Shapes) -> Case:
    """Every row has edits of every kind."""

    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        edits = _edits(s, t["logits"].device)
        return lambda: [adjust(t["logits"], edits)]

    # logits twice; of an id a bit of the mask, a byte of the prompt, a count of 32 bits
    moved = s.requests * (s.vocab * (8 + 1 + 4) + -(-s.vocab // 32) * 4)
    return Case("adjust", "all edits", moved, 0, _draw(s), bind, {"logits": IN_FP32})


def _edits(s: Shapes, device: torch.device) -> LogitEdits:
    rows, ids = (torch.arange(n, device=device) for n in (s.requests, s.vocab))

    def setting(value: float) -> torch.Tensor:
        return torch.full((s.requests,), value, dtype=torch.float64, device=device)

    words = torch.full(
        (s.requests, -(-s.vocab // 32)), _ALL_BUT_THE_LAST, dtype=torch.int32, device=device
    )
    in_prompt = (ids % 7 == 0).repeat(s.requests, 1)
    counts = (ids % 5 == 0).int().repeat(s.requests, 1)
    return LogitEdits(
        Masks(rows, words),
        Bans(rows, torch.zeros_like(rows)),
        Biases(rows, torch.ones_like(rows), setting(0.5)),
        Penalties(rows, in_prompt, counts, setting(1.2), setting(0.5), setting(0.25)),
    )


def _sample_case(s: Shapes, name: str, *, temperature: float, top_k: int, top_p: float) -> Case:
    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        # on the host, as the engine has them
        rows = torch.arange(s.requests)
        heat, nothing, mass = (
            torch.full((s.requests,), value) for value in (temperature, 0.0, top_p)
        )
        best = torch.full_like(rows, top_k)
        return lambda: sample(t["logits"], heat, nothing, best, mass, rows, rows)

    moved = s.requests * (4 * s.vocab + 8 + 1)
    return Case("sample", name, moved, 0, _draw(s), bind, {"ids": EXACT, "usable": EXACT})


def _logprobs_case(s: Shapes) -> Case:
    def bind(t: Tensors) -> Callable[[], Sequence[torch.Tensor]]:
        ids = torch.arange(s.requests, device=t["logits"].device)
        return lambda: logprobs(t["logits"], ids, _NUM_BEST)

    moved = s.requests * (4 * s.vocab + 12 + 12 * _NUM_BEST)
    bounds = {"chosen": IN_FP32, "ranks": EXACT, "best ids": EXACT, "best": IN_FP32}
    return Case("logprobs", f"best {_NUM_BEST}", moved, 0, _draw(s), bind, bounds)
