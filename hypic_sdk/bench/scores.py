"""What answers, distributions and states are compared by: pure functions."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normal_words(text: str) -> list[str]:
    """Words as SQuAD compares them: lower case, no punctuation, no articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(said: str, wanted: str) -> float:
    """1 if the answers have the same words in the same order, else 0."""
    return float(normal_words(said) == normal_words(wanted))


def token_f1(said: str, wanted: str) -> float:
    """Harmonic mean of precision and recall over the bags of words (SQuAD)."""
    a, b = normal_words(said), normal_words(wanted)
    if not a or not b:
        return float(a == b)
    shared = sum((Counter(a) & Counter(b)).values())
    return 2.0 * shared / (len(a) + len(b))


def rouge_l(said: str, wanted: str) -> float:
    """F measure of the longest common subsequence of words (Lin 2004, beta 1)."""
    a, b = normal_words(said), normal_words(wanted)
    if not a or not b:
        return float(a == b)
    row = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for at, other in enumerate(b, 1):
            kept = row[at]
            row[at] = before + 1 if word == other else max(kept, row[at - 1])
            before = kept
    return 2.0 * row[-1] / (len(a) + len(b))


def relative_l2(other: torch.Tensor, wanted: torch.Tensor) -> float:
    """|other - wanted| / |wanted|; 0 where both are zero."""
    difference = float((other.double() - wanted.double()).norm())
    size = float(wanted.double().norm())
    return difference / size if size else (0.0 if difference == 0.0 else float("inf"))


def angle_degrees(other: torch.Tensor, wanted: torch.Tensor) -> float:
    """The angle between two tensors taken as vectors; 0 where both are zero, 90 where one is."""
    a, b = other.double().flatten(), wanted.double().flatten()
    a_size, b_size = float(a.norm()), float(b.norm())
    if not a_size or not b_size:
        return 0.0 if a_size == b_size else 90.0
    # by both legs: an arc cosine knows no angle under 1e-8
    unit_a, unit_b = a / a_size, b / b_size
    half = torch.atan2((unit_a - unit_b).norm(), (unit_a + unit_b).norm())
    return float(torch.rad2deg(2.0 * half))


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    num_items: int

    def text(self, scale: float = 1.0, digits: int = 1) -> str:
        """`mean [low, high]`, each times `scale`."""
        mean, low, high = (f"{scale * x:.{digits}f}" for x in (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}]"


def bootstrap(
    values: Sequence[float], groups: Sequence[object] | None = None, *, draws: int = 2000,
    seed: int = 0,
) -> Interval:  # fmt: skip
    """Percentile interval of the mean.

    Args:
        groups: values of one group (orders of the same documents) are drawn together.
    Raises:
        ValueError: no values, or not as many groups.
    """
    labels = range(len(values)) if groups is None else groups
    if not values or len(labels) != len(values):
        raise ValueError(f"{len(values)} values with {len(labels)} groups have no mean")
    together: dict[object, list[float]] = {}
    for label, value in zip(labels, values, strict=True):
        together.setdefault(label, []).append(value)
    sums = torch.tensor([sum(some) for some in together.values()], dtype=torch.float64)
    counts = torch.tensor([len(some) for some in together.values()], dtype=torch.float64)
    rng = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(sums), (draws, len(sums)), generator=rng)
    means = (sums[picks].sum(1) / counts[picks].sum(1)).sort().values.tolist()
    mean = sum(values) / len(values)
    # rounding may put a mean that all draws share a hair outside
    low, high = min(mean, means[int(0.025 * draws)]), max(mean, means[int(0.975 * draws)])
    return Interval(mean, low, high, len(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value that at least `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, int(-(-share * len(ordered) // 1)) - 1))]
