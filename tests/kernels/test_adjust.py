"""Masks, bans, biases and penalties against plain Python, row by row."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hypic_sdk.kernels.sample.edits import Bans, Biases, LogitEdits, Masks, Penalties
from hypic_sdk.kernels.sample.op import adjust

INF = math.inf
VOCAB = 37  # no multiple of 32


def bits_of(allowed: list[set[int]]) -> torch.Tensor:
    """Masks as words of 32 bits, built by the definition."""
    words = torch.zeros(len(allowed), 2, dtype=torch.int64)
    for row, ids in enumerate(allowed):
        for token_id in ids:
            words[row, token_id // 32] |= 1 << (token_id % 32)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def penalties_of(rows: list[int], prompts, replies, repetition, presence, frequency) -> Penalties:
    in_prompt = torch.zeros(len(rows), VOCAB, dtype=torch.bool)
    counts = torch.zeros(len(rows), VOCAB, dtype=torch.int32)
    for row, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        in_prompt[row, list(prompt)] = True
        for token_id in reply:
            counts[row, token_id] += 1
    numbers = (
        torch.tensor(values, dtype=torch.float64) for values in (repetition, presence, frequency)
    )
    return Penalties(torch.tensor(rows), in_prompt, counts, *numbers)


def penalised(logits, prompt, reply, repetition, presence, frequency) -> list[float]:
    """The definition, one id after the other."""
    changed = []
    for token_id, logit in enumerate(logits):
        if token_id in prompt or token_id in reply:
            logit = logit / repetition if logit > 0 else logit * repetition
        logit -= frequency * reply.count(token_id)
        if token_id in reply:
            logit -= presence
        changed.append(logit)
    return changed


ids = st.lists(st.integers(0, VOCAB - 1), max_size=12)
rows = st.fixed_dictionaries(
    {
        "prompt": ids,
        "reply": ids,
        "repetition": st.sampled_from([0.5, 1.0, 1.3, 7.0]),
        "presence": st.sampled_from([-2.0, 0.0, 0.7]),
        "frequency": st.sampled_from([-0.1, 0.0, 1.9]),
    }
)


def random_logits(num_rows: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, VOCAB, generator=rng, dtype=torch.float64)
    logits[:, 5], logits[:, 6] = 0.0, -INF
    return logits


@given(settings=st.lists(rows, min_size=1, max_size=4), seed=st.integers(0, 99))
def test_penalties_are_those_of_the_definition_for_every_row(settings, seed):
    logits = random_logits(len(settings) + 1, seed)
    columns = {name: [one[name] for one in settings] for name in settings[0]}
    named = list(range(1, len(settings) + 1))
    edits = LogitEdits(
        penalties=penalties_of(
            named,
            columns["prompt"],
            columns["reply"],
            columns["repetition"],
            columns["presence"],
            columns["frequency"],
        )
    )
    got = adjust(logits, edits)
    assert torch.equal(got[0], logits[0])  # no edit names it
    for row, one in zip(named, settings, strict=True):
        want = penalised(logits[row].tolist(), **one)
        assert got[row].tolist() == want


@given(
    allowed=st.lists(st.sets(st.integers(0, VOCAB - 1)), min_size=1, max_size=3),
    seed=st.integers(0, 9),
)
def test_a_mask_leaves_its_own_ids_and_touches_no_other_row(allowed, seed):
    logits = random_logits(len(allowed) + 2, seed)
    rows = torch.arange(len(allowed)) + 1
    got = adjust(logits, LogitEdits(masks=Masks(rows, bits_of(allowed))))
    assert torch.equal(got[0], logits[0])
    assert torch.equal(got[-1], logits[-1])
    for row, ids in enumerate(allowed, 1):
        for token_id in range(VOCAB):
            want = logits[row, token_id] if token_id in ids else -INF
            assert got[row, token_id] == want


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bans_and_biases_change_what_they_name(dtype):
    logits = random_logits(4, 3).to(dtype)
    bans = Bans(torch.tensor([0, 3, 3]), torch.tensor([1, 2, 36]))
    biases = Biases(
        torch.tensor([1, 1, 3]),
        torch.tensor([0, 36, 2]),
        torch.tensor([100.0, -0.1, 9.0], dtype=torch.float64),
    )
    got = adjust(logits, LogitEdits(bans=bans, biases=biases))
    want = logits.clone()
    want[0, 1] = want[3, 2] = want[3, 36] = -INF  # a bias brings no forbidden id back
    want[1, 0] = logits[1, 0] + 100.0
    want[1, 36] = logits[1, 36] + torch.tensor(-0.1, dtype=dtype)
    assert torch.equal(got, want)


def test_the_order_is_mask_ban_bias_penalty():
    """A bias is divided by the repetition penalty, and what was masked stays so."""
    logits = torch.full((1, VOCAB), 2.0, dtype=torch.float64)
    one = torch.tensor([0])
    edits = LogitEdits(
        masks=Masks(one, bits_of([{3, 4, 5}])),
        bans=Bans(one, torch.tensor([5])),
        biases=Biases(one.repeat(3), torch.tensor([3, 5, 7]), torch.tensor([4.0] * 3).double()),
        penalties=penalties_of([0], [[3]], [[4, 4]], [2.0], [0.25], [1.0]),
    )
    got = adjust(logits, edits)[0]
    assert got[3] == (2.0 + 4.0) / 2.0
    assert got[4] == 2.0 / 2.0 - 2 * 1.0 - 0.25
    assert got.isfinite().nonzero()[:, 0].tolist() == [3, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_neutral_values_change_nothing_bit_for_bit(dtype):
    logits = random_logits(3, 1).to(dtype)
    logits[1, 9] = float("nan")
    neutral = LogitEdits(
        masks=Masks(torch.tensor([0, 1]), bits_of([set(range(VOCAB))] * 2)),
        biases=Biases(torch.tensor([1]), torch.tensor([4]), torch.zeros(1).double()),
        penalties=penalties_of(
            [0, 2], [[1, 5]] * 2, [[2, 2, 6]] * 2, [1.0] * 2, [0.0] * 2, [0.0] * 2
        ),
    )
    for edits in (neutral, LogitEdits()):
        got = adjust(logits, edits)
        assert got.view(torch.uint8).equal(logits.view(torch.uint8))


def test_a_row_is_edited_alike_in_any_company():
    settings = [([1, 2], [3, 3], 1.2, 0.5, 0.25), ([4], [5, 6, 5], 3.0, -1.0, 0.1)]
    logits = random_logits(2, 8).float()

    def run(rows: list[int], picked: torch.Tensor) -> torch.Tensor:
        columns = zip(*(settings[row] for row in rows), strict=True)
        return adjust(picked, LogitEdits(penalties=penalties_of(list(range(len(rows))), *columns)))

    both = run([0, 1], logits)
    assert torch.equal(run([1, 0], logits.flip(0)).flip(0), both)
    assert torch.equal(run([0], logits[:1]), both[:1])


def test_the_logits_that_came_are_not_written():
    logits = random_logits(1, 2)
    kept = logits.clone()
    adjust(logits, LogitEdits(bans=Bans(torch.tensor([0]), torch.tensor([0]))))
    assert torch.equal(logits, kept)


def test_wrong_shapes_are_named():
    logits, row = torch.zeros(1, VOCAB), torch.tensor([0])
    penalties = penalties_of([0], [[1]], [[2]], [1.0], [0.0], [0.0])
    with pytest.raises(ValueError, match="counts of 37 ids for 36"):
        adjust(logits[:, :36], LogitEdits(penalties=penalties))
    with pytest.raises(ValueError, match="1 words"):
        adjust(logits, LogitEdits(masks=Masks(row, torch.zeros(1, 1, dtype=torch.int32))))
    with pytest.raises(ValueError, match="float16"):
        adjust(logits.half(), LogitEdits())


class NoHostNumbers(TorchDispatchMode):
    """Refuses what brings a number of the host's to a device, for which a host would wait."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        # on a CUDA device `x[rows, ids] = number` makes it on the host, and waits until it is there
        assert func._schema.name != "aten::scalar_tensor", "a number is written by index"
        given = [one for one in tree_leaves(args) if torch.is_tensor(one)]
        assert all(one.device.type == "meta" for one in given), func._schema.name
        return func(*args, **(kwargs or {}))


def test_no_edit_brings_a_number_of_the_hosts_to_the_device():
    """On a device of shapes alone, with every edit there is."""

    def there(*sizes: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="meta")

    numbers = [there(2, dtype=torch.float64) for _ in range(3)]
    edits = LogitEdits(
        masks=Masks(there(2), there(2, 2, dtype=torch.int32)),
        bans=Bans(there(3), there(3)),
        biases=Biases(there(3), there(3), numbers[0].new_empty(3)),
        penalties=Penalties(
            there(2), there(2, VOCAB, dtype=torch.bool), there(2, VOCAB, dtype=torch.int32),
            *numbers,
        ),
    )  # fmt: skip
    with NoHostNumbers():
        assert adjust(there(4, VOCAB, dtype=torch.float32), edits).shape == (4, VOCAB)
