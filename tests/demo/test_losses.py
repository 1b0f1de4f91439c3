"""What a step of training is scored by."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.demo import reader_path
from hypic_sdk.demo.evaluate import hidden_states, tensors
from hypic_sdk.demo.initial import init_weights
from hypic_sdk.demo.losses import Weights, kl_divergence, losses
from hypic_sdk.demo.prompts import ANSWER, PieceTokenizer, PromptEncoder, pack
from hypic_sdk.demo.questions import make_example
from hypic_sdk.demo.reader_model import Reader
from hypic_sdk.demo.train import TOY
from hypic_sdk.demo.worlds import WorldSpec

ENCODER = PromptEncoder(PieceTokenizer(reader_path()))
AGREE = Weights(agree=1.0)


def toy() -> Reader:
    reader = Reader(TOY)
    init_weights(reader, 5)
    with torch.no_grad():  # fresh weights answer all alike
        for weight in reader.parameters():
            weight.mul_(2.0)
    return reader


def fields(document_tokens: int) -> dict[str, torch.Tensor]:
    one = ENCODER.encode(make_example(WorldSpec(3, document_tokens), 4))
    return tensors(pack([[one]], len(one)), "cpu")


@given(st.integers(0, 2**30), st.floats(0.1, 30.0))
def test_a_divergence_is_that_of_the_definition(seed: int, scale: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    wanted, found = scale * torch.randn(2, 3, 7, generator=rng, dtype=torch.float64)
    p, q = wanted.softmax(-1), found.softmax(-1)
    terms = torch.where(p > 0, p * (p / q).log(), torch.zeros_like(p))
    torch.testing.assert_close(kl_divergence(wanted, found), terms.sum(-1))
    assert bool((kl_divergence(wanted, found) >= 0).all())
    assert bool((kl_divergence(wanted, wanted) == 0).all())


def test_short_documents_are_composed_of_nothing_and_agree() -> None:
    short = fields(18)
    assert not bool(short["interior"].any())
    assert losses(toy(), short, True, AGREE)[3].item() == pytest.approx(0.0, abs=1e-6)


def test_composed_answers_are_apart_and_learn_to_agree() -> None:
    reader, long = toy(), fields(150)
    assert bool(long["interior"].any())
    optimizer = torch.optim.Adam(reader.parameters(), 1e-3)
    apart = []
    for _ in range(12):
        parts = losses(reader, long, True, AGREE)
        apart.append(parts[3].item())
        optimizer.zero_grad()
        parts[3].backward()
        optimizer.step()
    assert apart[0] > 1e-3
    assert apart[-1] < apart[0] / 2


def test_only_the_composed_answers_move_towards_the_plain_ones() -> None:
    reader, long = toy(), fields(150)
    losses(reader, long, True, AGREE)[3].backward()
    found = [weight.grad.clone() for weight in reader.parameters() if weight.grad is not None]
    reader.zero_grad()
    plain = hidden_states(reader, long, "full").detach()
    composed = hidden_states(reader, long, "composed")
    wanted, given = (F.log_softmax(reader.logits(hidden), -1) for hidden in (plain, composed))
    each = F.kl_div(given, wanted.detach(), reduction="none", log_target=True).sum(-1)
    each[long["target_class"] == ANSWER].mean().backward()
    expected = [weight.grad for weight in reader.parameters() if weight.grad is not None]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("composed", [False, True])
def test_what_counts_besides_answers(composed: bool) -> None:
    parts = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    wanted = 1.0 + (0.5 * 1000.0 if composed else 0.2 * 10.0)
    assert float(Weights(0.2, 0.5).sum(parts, composed)) == pytest.approx(wanted)
