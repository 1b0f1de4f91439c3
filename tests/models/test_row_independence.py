"""With `row_independent` a row's bits do not depend on its batch (scan and attention aside)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.models.base import CausalLM
from hypic_sdk.models.qwen3_5 import Config, Model
from hypic_sdk.models.tiny_hybrid import build_tiny
from tests.models.oracle import EXPERTS, SIZES, randomise

# wide enough that torch splits pointwise work over threads, and of odd numbers of heads
WIDE = {
    **SIZES,
    "hidden_size": 330,
    "intermediate_size": 1030,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 9,
    "linear_key_head_dim": 15,
    "linear_value_head_dim": 17,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "head_dim": 24,
    "vocab_size": 331,
}


class RowContext:
    """Answers every question from the row itself; what it is asked is a matter of bits too."""

    row_independent = True

    def __init__(self, positions: torch.Tensor) -> None:
        self.positions = positions
        self.row_count = torch.tensor([len(positions)])
        self.asked: list[torch.Tensor] = []

    def short_conv(
        self,
        layer: int,
        inputs_LC: torch.Tensor,
        weight_CW: torch.Tensor,
        bias_C: torch.Tensor | None,
        *,
        activation: str | None,
    ) -> torch.Tensor:
        self.asked.append(inputs_LC)
        return inputs_LC * weight_CW[:, -1]

    def linear_attention(self, layer: int, recurrence: Recurrence) -> torch.Tensor:
        rows = ("query", "key", "value", "log_decay", "erase", "steps")
        recurrence = recurrence.written_out()
        self.asked += [t for name in rows if (t := getattr(recurrence, name)) is not None]
        return recurrence.value * recurrence.query.sum(dim=(1, 2))[:, None, None]

    def full_attention(
        self,
        layer: int,
        query_LQE: torch.Tensor,
        key_LGE: torch.Tensor,
        value_LGE: torch.Tensor,
        *,
        norms: HeadNorms | None,
        rotary: RotarySpec | None,
        scale: float,
    ) -> torch.Tensor:
        if norms is not None:
            query_LQE, key_LGE = norms.apply(query_LQE, key_LGE)
        self.asked += [query_LQE, key_LGE, value_LGE]
        return query_LQE * scale


WIDE_EXPERTS = {
    **EXPERTS,
    "num_experts": 13,
    "moe_intermediate_size": 390,
    "shared_expert_intermediate_size": 515,
}


def wide_qwen(model_type: str = "qwen3_5_text", **experts: int) -> CausalLM:
    config = Config.from_hf({"model_type": model_type, **WIDE, **experts})
    model = Model(config, torch.float32)
    randomise(model)
    return model.eval()


MODELS = {
    "qwen3_5": wide_qwen,
    "qwen3_5_moe": lambda: wide_qwen("qwen3_5_moe_text", **WIDE_EXPERTS),
    "qwen3_next": lambda: wide_qwen("qwen3_next", **WIDE_EXPERTS),
    **{
        family: lambda family=family: build_tiny(
            family, num_heads=9, num_key_heads=3, width=330, inner=1030, vocab_size=331
        )
        for family in FAMILIES
    },
}


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


PERIOD = 5  # coprime to 16: every row comes to stand at every place of a vector and of a tile


def everything(model: CausalLM, num_rows: int) -> list[torch.Tensor]:
    """All that the model computes for a batch that repeats five rows."""
    token = torch.randint(0, 331, (PERIOD,), generator=torch.Generator().manual_seed(0))
    which = torch.arange(num_rows) % PERIOD
    context = RowContext(which * 11)
    hidden = model.forward(token[which], context)
    return [*context.asked, hidden, model.logits(hidden, row_independent=True)]


@pytest.mark.parametrize("name", MODELS)
def test_a_row_is_the_same_anywhere_in_any_batch(name: str, threads: int) -> None:
    model = MODELS[name]()
    want = [tensor[:PERIOD] for tensor in everything(model, 16)]
    for num_rows in (16, 336):
        which = torch.arange(num_rows) % PERIOD
        got = everything(model, num_rows)
        assert len(got) == len(want)
        for index, (a, b) in enumerate(zip(got, want, strict=True)):
            assert torch.equal(a, b[which]), f"tensor {index} of {len(want)}, {num_rows} rows"


def test_logits_take_any_number_of_rows() -> None:
    model = wide_qwen()
    hidden = torch.randn(21, 330)
    whole = model.logits(hidden, row_independent=True)
    for rows in ([0], [20], list(range(17)), [3] * 16):
        assert torch.equal(model.logits(hidden[rows], row_independent=True), whole[rows])
    assert model.logits(hidden[:0], row_independent=True).shape == (0, 331)
