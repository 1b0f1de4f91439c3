"""Costs of one worker as straight lines in tokens, from what single documents took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypic_sdk.router.costs import CostModel


@dataclass(frozen=True, slots=True)
class Sample:
    """One document of a length."""

    num_tokens: int
    cold_ms: float  # to compute it
    transfer_ms: float  # more than with its entry at hand, when it came from another worker
    at_hand_ms: float  # to the first token with its entry at hand
    live_tokens: int


def fitted_costs(samples: Sequence[Sample]) -> CostModel:
    """Least squares over at least two lengths; what would be below 0 is 0."""
    cold = line([(one.num_tokens, one.cold_ms) for one in samples])
    transfer = line([(one.num_tokens, one.transfer_ms) for one in samples])
    live = [one.at_hand_ms / max(1, one.live_tokens) for one in samples]
    return CostModel(*cold, *transfer, sorted(live)[len(live) // 2])


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope of the best line through points, neither below 0."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    slope = max(0.0, slope)
    return max(0.0, mean_y - slope * mean_x), slope
