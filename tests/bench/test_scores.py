"""Scores against their definitions, written another way."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.bench.scores import (
    angle_degrees,
    bootstrap,
    exact_match,
    percentile,
    relative_l2,
    rouge_l,
    token_f1,
)

words = st.lists(st.sampled_from(("red", "blue", "green", "oak")), max_size=7)


@given(words, words)
def test_rouge_l_is_the_f_measure_of_the_longest_common_subsequence(a, b):
    def subsequences(text):
        return {c for n in range(len(text) + 1) for c in itertools.combinations(text, n)}

    longest = max(len(c) for c in subsequences(a) & subsequences(b))
    if not a or not b:
        expected = float(a == b)
    elif longest == 0:
        expected = 0.0
    else:
        precision, recall = longest / len(a), longest / len(b)
        expected = 2 * precision * recall / (precision + recall)
    assert rouge_l(" ".join(a), " ".join(b)) == pytest.approx(expected, abs=1e-12)


@given(words, words)
def test_f1_does_not_know_the_order_and_is_one_where_the_match_is_exact(a, b):
    one, other = " ".join(a), " ".join(b)
    assert token_f1(one, other) == token_f1(other, one) == token_f1(" ".join(sorted(a)), other)
    assert (token_f1(one, other) == 1.0) == (sorted(a) == sorted(b))
    assert exact_match(one, other) == float(a == b)
    assert rouge_l(one, other) <= token_f1(one, other) + 1e-12


def test_answers_are_compared_as_squad_does():
    assert exact_match("The Red, oak.", "red oak") == 1.0
    assert exact_match("red oaks", "red oak") == 0.0
    # two of three words shared, of two: 2 * 2 / 5
    assert token_f1("red oak tree", "red oak") == pytest.approx(0.8)
    # repeated words count as often as both have them
    assert token_f1("red red", "red") == pytest.approx(2 / 3)


def test_angles_and_lengths():
    a = torch.tensor([1.0, 0.0, 0.0])
    assert angle_degrees(torch.tensor([0.0, 2.0, 0.0]), a) == pytest.approx(90.0)
    assert angle_degrees(torch.tensor([-3.0, 0.0, 0.0]), a) == pytest.approx(180.0)
    assert angle_degrees(torch.tensor([1.0, 1e-6, 0.0]), a) == pytest.approx(5.7296e-5, rel=1e-3)
    assert relative_l2(torch.tensor([1.0, 2.0, 0.0]), a) == pytest.approx(2.0)
    zero = torch.zeros(3)
    assert (relative_l2(zero, zero), angle_degrees(zero, zero)) == (0.0, 0.0)
    assert (relative_l2(a, zero), angle_degrees(a, zero)) == (math.inf, 90.0)


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = random.Random(5)
    covered = 0
    for seed in range(200):
        values = [float(rng.random() < 0.7) for _ in range(60)]
        one = bootstrap(values, draws=300, seed=seed)
        assert one.low <= one.mean <= one.high
        covered += one.low <= 0.7 <= one.high
    # 95 % of 200 is 190, with a standard deviation of 3; the percentile method covers a bit less
    assert 175 <= covered <= 200


def test_values_of_one_group_are_drawn_together():
    values = [0.0, 1.0] * 20
    alone = bootstrap(values)
    # each group holds one 0 and one 1, so every draw has the same mean
    paired = bootstrap(values, [i // 2 for i in range(40)])
    assert (paired.low, paired.high) == (0.5, 0.5)
    assert alone.high - alone.low > 0.2
    # one value forty times over is one piece of knowledge, not forty
    copies = bootstrap(values[:2] * 20, [i % 2 for i in range(40)])
    assert (copies.low, copies.high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="0 values"):
        bootstrap([])


def test_nearest_rank():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(map(float, range(1, 101))), 0.99) == 99.0
    assert percentile([4.0], 0.01) == 4.0
