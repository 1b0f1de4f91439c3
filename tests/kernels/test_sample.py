from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.kernels.sample import reference
from hypic_sdk.kernels.sample.noise import GOLDEN, uniform
from hypic_sdk.kernels.sample.op import logprobs, sample

NAN, INF = float("nan"), float("inf")


def draw(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, step=0):
    """`sample` with one setting for all rows, or one each."""
    rows = len(logits)

    def spread(value, dtype):
        return torch.as_tensor(value, dtype=dtype).expand(rows)

    return sample(
        logits,
        spread(temperature, torch.float32),
        spread(min_p, torch.float32),
        spread(top_k, torch.long),
        spread(top_p, torch.float32),
        spread(seed, torch.long),
        spread(step, torch.long),
    )


def expected(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float = 0.0
) -> list[float]:
    """Probabilities by the definition, in plain Python."""
    best = max(logits)
    mass = [math.exp((logit - best) / temperature) for logit in logits]
    mass = [one if one >= min_p else 0.0 for one in mass]  # the likeliest one's is 1
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    ranked = ranked[: top_k or None]
    total, kept, before = sum(mass[i] for i in ranked), [], 0.0
    for i in ranked:
        if not kept or before < top_p * total:
            kept.append(i)
        before += mass[i]
    total = sum(mass[i] for i in kept)
    return [mass[i] / total if i in kept else 0.0 for i in range(len(logits))]


SETTINGS = [
    (1.0, 0, 1.0),
    (0.5, 0, 1.0),
    (1.7, 3, 1.0),
    (1.0, 0, 0.7),
    (0.8, 5, 0.55),
    (1.0, 1, 1.0),
    (1.0, 0, 0.0),
    (1.0, 99, 0.999),
]
SETTINGS = [(*one, 0.0) for one in SETTINGS] + [
    (1.0, 0, 1.0, 0.25),
    (2.0, 0, 1.0, 0.25),  # of the probabilities at that temperature
    (1.0, 3, 1.0, 0.1),
    (1.0, 0, 0.8, 0.15),  # top_p is a share of what min_p left
    (0.8, 5, 0.55, 1.0),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), SETTINGS)
def test_frequencies_are_the_probabilities(temperature, top_k, top_p, min_p):
    """Chi-square over 20,000 steps of one seed; ties at the filters' borders included."""
    logits = [0.3, 2.0, -1.0, 1.5, 2.0, 0.3, -INF, 1.5, 0.9]
    num_draws = 20_000
    ids = draw(
        torch.tensor(logits).expand(num_draws, -1),
        temperature,
        top_k,
        top_p,
        min_p,
        seed=12345,
        step=torch.arange(num_draws),
    ).ids
    counts = torch.bincount(ids, minlength=len(logits)).double()
    want = torch.tensor(expected(logits, temperature, top_k, top_p, min_p)).double() * num_draws
    assert counts[want == 0].eq(0).all()
    possible = want > 0
    chi_square = ((counts - want).square() / want)[possible].sum()
    # 8 degrees of freedom at most: 26 is passed by chance once in a thousand; the seed is fixed
    assert chi_square < 26.0


@given(
    logits=st.lists(st.integers(-4, 4), min_size=1, max_size=12),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.0, 0.2, 0.5, 0.9, 0.99]),
    min_p=st.sampled_from([0.0, 1e-6, 0.05, 0.4, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_only_what_the_filters_leave_is_drawn(logits, temperature, top_k, top_p, min_p, seed):
    ids = draw(
        torch.tensor([logits] * 32).float(),
        temperature,
        top_k,
        top_p,
        min_p,
        seed=seed,
        step=torch.arange(32),
    ).ids
    want = expected(logits, temperature, top_k, top_p, min_p)
    possible = {i for i, p in enumerate(want) if p > 1e-9}
    assert set(ids.tolist()) <= possible


@given(
    logits=st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    settings=st.sampled_from([{"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}]),
)
def test_greedy_takes_the_lowest_id_of_the_best(logits, settings):
    sampled = draw(torch.tensor([logits, logits[::-1]]).float(), **settings)
    best = max(logits)
    assert sampled.ids.tolist() == [logits.index(best), logits[::-1].index(best)]
    assert sampled.ok.all()


def test_one_seed_and_step_draw_one_id_whatever_the_batch():
    """Alone, in another order, beside greedy and filtered rows: the same id."""
    rows, vocabulary = 60, 300
    logits, index = torch.randn(rows, vocabulary), torch.arange(rows)
    settings = (
        torch.tensor([0.0, 1.0, 0.6])[index % 3],
        torch.tensor([0.0, 0.3, 0.0, 0.01])[index % 4],
        torch.tensor([0, 0, 7, 290])[index % 4],
        torch.tensor([1.0, 0.5, 1.0, 0.9, 1.0])[index % 5],
        index * 31,
        index % 7,
    )
    whole = sample(logits, *settings).ids
    order = torch.randperm(rows)
    shuffled = sample(logits[order], *(setting[order] for setting in settings)).ids
    assert torch.equal(shuffled, whole[order])
    for row in range(rows):
        alone = sample(logits[row : row + 1], *(setting[row : row + 1] for setting in settings))
        assert alone.ids.item() == whole[row]


def test_another_seed_or_step_draws_anew():
    logits = torch.zeros(1000, 50)
    index = torch.arange(1000)
    for settings in ({"seed": index}, {"step": index}):
        ids = draw(logits, **settings).ids
        # 50 equal ids: two draws agree once in 50
        assert (ids[1:] == ids[:-1]).double().mean() < 0.05
    assert not torch.equal(draw(logits, seed=index).ids, draw(logits, step=index).ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e-30])
@pytest.mark.parametrize(
    "bad", [[0.0, NAN, 1.0], [0.0, INF, 1.0], [-INF, -INF, -INF], [NAN, NAN, NAN]]
)
def test_unusable_logits_are_flagged_and_spoil_nobody_else(bad, temperature):
    good = [0.0, 3.0, 1.0]
    sampled = draw(torch.tensor([good, bad, good]), temperature, top_p=0.9)
    assert sampled.ok.tolist() == [True, False, True]
    assert sampled.ids[1] == 0
    alone = draw(torch.tensor([good, good]), temperature, top_p=0.9)
    assert sampled.ids[[0, 2]].tolist() == alone.ids.tolist()


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45])
def test_a_tiny_temperature_is_greedy(temperature):
    sampled = draw(torch.tensor([[1e3, 1e3 + 1, -1e30, -INF]]), temperature)
    assert sampled.ids.tolist() == [1]
    assert sampled.ok.all()


def test_forbidden_ids_are_never_drawn():
    logits = torch.full((500, 100), -INF)
    logits[:, 40:43] = 0.0
    for filters in ({}, {"top_k": 50}, {"top_p": 0.999999}):
        ids = draw(logits, step=torch.arange(500), **filters).ids
        assert set(ids.tolist()) == {40, 41, 42}


def test_a_large_vocabulary_with_filters():
    """More ids than are looked at first; a flat distribution needs them all."""
    logits = torch.zeros(64, 20_000)
    ids = draw(logits, top_p=0.5, step=torch.arange(64)).ids
    assert ids.max() < 10_001  # of equal ids the lower half stays
    assert ids.max() > 5_000
    ids = draw(logits, top_k=3, step=torch.arange(64)).ids
    assert set(ids.tolist()) == {0, 1, 2}


@given(
    logits=st.lists(st.integers(-6, 6), min_size=5, max_size=40),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
)
def test_how_many_candidates_are_looked_at_first_changes_nothing(logits, top_k, top_p):
    rows = torch.tensor([logits, logits[::-1]] * 20) / 3
    found = []
    for candidates in (1, 4, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reference, "_CANDIDATES", candidates)
            found.append(draw(rows, 1.1, top_k, top_p, step=torch.arange(40)).ids.tolist())
    assert found[0] == found[1] == found[2]


def test_noise_is_uniform_and_uncorrelated():
    """Over seeds, over steps, and over both at once."""
    index = torch.arange(40_000)
    for seeds, steps in (
        (index, torch.zeros_like(index)),
        (torch.zeros_like(index), index),
        (index, index),
        (index, -index),
        (index * 2**40, index % 3),
    ):
        noise = uniform(seeds, steps)
        assert 0.0 < noise.min()
        assert noise.max() < 1.0
        counts = torch.histc(noise, 50, 0.0, 1.0)
        # 49 degrees of freedom: 94 is passed by chance once in ten thousand
        assert ((counts - 800).square() / 800).sum() < 94.0
        centred = noise - 0.5
        correlation = 12 * (centred[1:] * centred[:-1]).mean()
        assert correlation.abs() < 5 / math.sqrt(40_000)  # five standard errors


def test_noise_never_reaches_its_ends():
    seeds = torch.tensor([-(2**63), 2**63 - 1, -1, 0])
    noise = uniform(seeds, seeds.flip(0))
    assert ((noise > 0.0) & (noise < 1.0)).all()
    # the seed whose hash is 0 at step 0
    assert uniform(torch.tensor([-GOLDEN]), torch.tensor([0])) == 2.0**-49


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [0, 1, 4, 23])
def test_logprobs(n, dtype):
    logits = (3 * torch.randn(7, 23)).round().to(dtype)  # with ties
    ids = torch.arange(7)
    found = logprobs(logits, ids, n)
    want = logits.double().softmax(-1).log()
    bound = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(found.chosen.double(), want[ids, ids], **bound)
    assert found.top_ids.shape == found.top.shape == (7, n)
    for row in range(7):
        ordered = sorted(range(23), key=lambda i, row=row: (-logits[row, i].item(), i))
        best = ordered[:n]
        assert found.ranks[row] == ordered.index(ids[row]) + 1
        assert found.top_ids[row].tolist() == best
        torch.testing.assert_close(found.top[row].double(), want[row, best], **bound)


def test_logprobs_of_unusable_logits_spoil_nobody_else():
    logits = torch.tensor([[0.0, 3.0, 1.0], [NAN, 0.0, INF], [-INF, -INF, -INF]])
    found = logprobs(logits, torch.tensor([1, 0, 2]), 2)
    assert found.top_ids[0].tolist() == [1, 2]
    alone = logprobs(logits[:1], torch.tensor([1]), 2)
    assert torch.equal(found.top[:1], alone.top)
    assert found.chosen[1:].isnan().all()


@pytest.mark.parametrize("n", [0, 3])
def test_no_size_of_log_probabilities_depends_on_a_value(n):
    """On a device of shapes alone: a host that asked for a value would wait."""
    logits = torch.empty(4, 70, device="meta")
    found = logprobs(logits, torch.empty(4, dtype=torch.long, device="meta"), n)
    assert found.top_ids.shape == found.top.shape == (4, n)


def test_wrong_shapes_are_named():
    logits, one, two = torch.zeros(2, 5), torch.zeros(1), torch.zeros(2)
    with pytest.raises(ValueError, match=r"top_k \(1,\) for 2 rows"):
        sample(logits, two, two, one.long(), two, two.long(), two.long())
    with pytest.raises(ValueError, match="float16"):
        draw(logits.half())
    with pytest.raises(ValueError, match="vocabulary"):
        draw(logits[:, :0])
    with pytest.raises(ValueError, match="best 6 of 5"):
        logprobs(logits, torch.zeros(2, dtype=torch.long), 6)
    with pytest.raises(ValueError, match=r"ids \(3,\)"):
        logprobs(logits, torch.zeros(3, dtype=torch.long), 1)
