"""tiny_hybrid is worth testing on: repeatable, of every family, and nothing in it is idle."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.errors import ConfigError, UnsupportedError
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.models.base import LayerKind, TransitionKind
from hypic_sdk.models.tiny_config import TinyConfig
from hypic_sdk.models.tiny_hybrid import TinyHybrid, build_tiny
from tests.closeness import assert_close, relative_rms
from tests.models.oracle import token_ids
from tests.plain_context import PlainContext

TRANSITIONS = {
    "retention": TransitionKind.CONSTANT,
    "lightning": TransitionKind.CONSTANT,
    "mamba2": TransitionKind.SCALAR,
    "mamba1": TransitionKind.DIAGONAL,
    "gla": TransitionKind.DIAGONAL,
    "delta_rule": TransitionKind.DENSE,
    "gated_delta_rule": TransitionKind.DENSE,
    "kda": TransitionKind.DENSE,
}
WITH_CONV = {"mamba2", "mamba1", "gated_delta_rule", "kda"}


class Listener(PlainContext):
    """Keeps what the first linear layer hands over."""

    recurrence: Recurrence | None = None

    def linear_attention(self, layer: int, recurrence: Recurrence) -> torch.Tensor:
        if layer == 0:
            self.recurrence = recurrence.written_out()
        return super().linear_attention(layer, recurrence)


def logits(model: TinyHybrid, ids: list[int]) -> torch.Tensor:
    return PlainContext().logits(model, ids)


def test_every_family_is_here() -> None:
    assert TRANSITIONS.keys() == FAMILIES.keys()
    for family in FAMILIES:
        build_tiny(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_spec_tells_what_the_layers_hand_over(family: str) -> None:
    model = build_tiny(family, layers="LALA")
    spec, linear = model.spec, model.spec.linear
    assert spec.layers == (LayerKind.LINEAR, LayerKind.ATTENTION) * 2
    assert (spec.num_linear, spec.num_attention) == (2, 2)
    context = Listener()
    context.logits(model, token_ids(7))
    recurrence = context.recurrence
    assert recurrence is not None
    assert recurrence.value.shape == (7, linear.num_heads, linear.value_size)
    assert recurrence.key.shape[2] == linear.key_size != linear.value_size
    assert recurrence.key.shape[1] < linear.num_heads
    assert linear.transition is TRANSITIONS[family]
    dense = recurrence.erase is not None
    constant = recurrence.constant_log_decay is not None
    assert dense == (linear.transition is TransitionKind.DENSE)
    assert constant == (linear.transition is TransitionKind.CONSTANT)
    assert recurrence.key_rotation == linear.key_rotation
    assert (linear.key_rotation is not None) == (family == "lightning")
    assert (linear.conv_width > 1) == (family in WITH_CONV)
    shapes = {layer: tail.shape for layer, tail in context.tails.items()}
    want = (linear.conv_width - 1, linear.conv_channels)
    assert shapes == (dict.fromkeys((0, 1), want) if family in WITH_CONV else {})
    assert spec.attention is not None
    assert context.keys[0].shape == (7, spec.attention.num_kv_heads, spec.attention.head_size)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_thousand_parameters_that_are_finite_and_all_used(family: str) -> None:
    model, ids = build_tiny(family, dtype=torch.float64, layers="LA"), token_ids(12)
    assert sum(p.numel() for p in model.parameters()) < 15_000
    base = logits(model, ids)
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter).all(), name
        kept = parameter.clone()
        parameter.mul_(1.1).add_(0.01)
        assert relative_rms(logits(model, ids), base) > 1e-6, name
        parameter.copy_(kept)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_is_a_model_whatever_the_precision(family: str) -> None:
    ids = token_ids(30)
    wide = logits(build_tiny(family, seed=3, dtype=torch.float64), ids)
    again = logits(build_tiny(family, seed=3, dtype=torch.float64), ids)
    assert torch.equal(wide, again)
    # fp32 sums of at most 48 terms through three layers
    narrow = logits(build_tiny(family, seed=3), ids)
    assert narrow.dtype == torch.float32
    assert_close("fp32", narrow, wide, rel_rms=1e-5)
    assert relative_rms(logits(build_tiny(family, seed=4, dtype=torch.float64), ids), wide) > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_states_matter_over_hundreds_of_tokens(family: str) -> None:
    """Without attention, what stood 260 tokens back reaches the logits through states alone."""
    model = build_tiny(family, dtype=torch.float64, layers="LL")
    ids = token_ids(300)
    other = token_ids(40, seed=9) + ids[40:]
    error = relative_rms(logits(model, ids)[299:], logits(model, other)[299:])
    assert error > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_most_heads_keep_their_state(family: str) -> None:
    """The transition of 64 tokens, row sums of its size: at least half the heads stay above 0.3."""
    context = Listener()
    context.logits(build_tiny(family, dtype=torch.float64), token_ids(64))
    assert context.recurrence is not None
    matrix = context.recurrence.segment_state().transition.to_dense(context.recurrence.key.shape[2])
    norms = torch.linalg.matrix_norm(matrix, ord=2)
    assert (norms > 0.3).double().mean() >= 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_not_degenerate(family: str) -> None:
    """Greedy tokens vary, no token dominates, and the best two are rarely close."""
    table = logits(build_tiny(family, dtype=torch.float64), token_ids(200))
    assert 0.5 < table.std() < 5
    assert len(set(table.argmax(-1).tolist())) > 20
    best = table.topk(2).values
    assert (best[:, 0] - best[:, 1]).median() > 0.05


@pytest.mark.parametrize("family", ["gla", "lightning"])
def test_rotary_is_a_choice(family: str) -> None:
    ids = token_ids(20)
    turned = build_tiny(family, dtype=torch.float64)
    plain = build_tiny(family, dtype=torch.float64, rotary=False, key_rotary=False)
    assert turned.spec.attention is not None
    assert turned.spec.attention.rotary is not None
    assert plain.spec.attention is not None
    assert plain.spec.attention.rotary is None
    assert plain.spec.linear.key_rotation is None
    # position 0 turns nothing
    assert torch.equal(logits(turned, ids[:1]), logits(plain, ids[:1]))
    assert relative_rms(logits(turned, ids), logits(plain, ids)) > 1e-2
    # without rotary position, a sequence does not know where it starts
    late = PlainContext(position=1000).logits(plain, ids)
    assert_close("moved", late, logits(plain, ids), rel_rms=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_rotary_sees_distances_only(family: str) -> None:
    """Keys and queries turn together, in attention and in lightning's recurrence."""
    model, ids = build_tiny(family, dtype=torch.float64), token_ids(30)
    late = PlainContext(position=777).logits(model, ids)
    assert_close("moved", late, logits(model, ids), rel_rms=1e-10)


def test_sizes_are_free() -> None:
    sizes = {"num_heads": 6, "num_key_heads": 3, "key_size": 7, "value_size": 2, "conv_width": 2}
    for family in FAMILIES:
        model = build_tiny(family, layers="AL", vocab_size=11, width=10, **sizes)
        assert logits(model, [1, 2, 3]).shape == (3, 11)
        assert model.spec.linear.value_size == 2


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no family 'rwkv'"):
        build_tiny("rwkv")
    for layers in ("", "LXA"):
        with pytest.raises(ConfigError, match="pattern of L and A"):
            build_tiny("gla", layers=layers)
    with pytest.raises(ConfigError, match="multiple"):
        TinyConfig("gla", num_heads=4, num_key_heads=3)
