"""KL divergence against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from hypic_sdk.engine.divergence import divergence_rows


def test_kl_is_the_sum_of_p_log_p_over_q():
    rng = torch.Generator().manual_seed(1)
    a, b = (torch.randn(5, 7, generator=rng, dtype=torch.float64) for _ in range(2))
    p, q = a.softmax(-1), b.softmax(-1)
    expected = [
        sum(float(x) * math.log(float(x) / float(y)) for x, y in zip(r, s, strict=True))
        for r, s in zip(p, q, strict=True)
    ]
    assert divergence_rows(a, b).tolist() == pytest.approx(expected, rel=1e-9)
    assert divergence_rows(a, a + 3.0).tolist() == pytest.approx([0.0] * 5, abs=1e-12)
    assert divergence_rows(a, b).tolist() != pytest.approx(divergence_rows(b, a).tolist())
