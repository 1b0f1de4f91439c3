"""The doctor's law checks: they hold for every family, and see a law that is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hypic_sdk.algebra.segment_state import SegmentState
from hypic_sdk.config import PAIRS
from hypic_sdk.doctor import laws
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.store.layout import StoreLayout

CPU = torch.device("cpu")


def layout_of(family: str, pair: str, **sizes: int) -> StoreLayout:
    return StoreLayout.of(
        build_tiny(family, **sizes).spec,
        dtype=torch.float32,
        state_dtype=torch.float32,
        pair=pair,
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pair", PAIRS)
def test_all_hold(family: str, pair: str) -> None:
    layout = layout_of(family, pair)
    for seed in range(5):
        for check in laws.check_laws(family, layout, device=CPU, seed=seed):
            assert check.holds, check
            assert check.error < 1


def test_a_stored_transition_in_fp16_costs_more_than_in_fp32() -> None:
    """And the bound is of the size that the design gives: 5e-4 |T| |S_before| / |S_after|."""
    errors, bounds = [], []
    for pair in ("float16", "float32"):
        check = laws.check_laws("gated_delta_rule", layout_of("gated_delta_rule", pair),
                                device=CPU)[-1]  # fmt: skip
        errors.append(check.error)
        bounds.append(check.bound)
        assert pair in check.law
    assert errors[0] > 100 * errors[1] > 0
    assert bounds[0] > 100 * bounds[1]


@pytest.mark.parametrize(
    ("family", "broken"),
    [("gated_delta_rule", "transitions")]
    + [(name, "states") for name in ("gated_delta_rule", "gla", "retention")],
)
def test_a_pair_in_8_bits_that_is_read_wrong_is_seen(
    family: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the wrong sign."""
    right = Int8Pairs.write

    def wrong(self: Int8Pairs, *pair: Any) -> torch.Tensor:
        finite = right(self, *pair)
        getattr(self, broken).neg_()
        return finite

    monkeypatch.setattr(Int8Pairs, "write", wrong)
    check = laws.check_laws(family, layout_of(family, "int8"), device=CPU)[-1]
    assert "int8" in check.law
    assert not check.holds


def swapped(self: Any, later: Any) -> Any:
    """Composition in the wrong order."""
    return SegmentState(later.transition.then(self.transition), self.apply(later.end_state))


def forgets(self: Any, state: torch.Tensor) -> torch.Tensor:
    """A gap that only adds."""
    return state + self.end_state


@pytest.mark.parametrize(("name", "wrong"), [("then", swapped), ("apply", forgets)])
@pytest.mark.parametrize("family", ["gated_delta_rule", "gla", "mamba2"])
def test_a_broken_composition_is_seen(
    family: str, name: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(family, "float16")
    monkeypatch.setattr(SegmentState, name, wrong)
    assert not laws.check_laws(family, layout, device=CPU)[0].holds


def test_a_scan_that_forgets_its_head_seam_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = laws.segment_scan

    def wrong(inputs: Any, runs: Any, states: Any, slab: Any, **rest: Any) -> Any:
        done = right(inputs, runs, states, slab, **rest)
        states += 1e-3
        return done

    monkeypatch.setattr(laws, "segment_scan", wrong)
    layout = layout_of("gated_delta_rule", "float16")
    assert not laws.check_laws("gated_delta_rule", layout, device=CPU)[1].holds


def test_a_nan_holds_nothing() -> None:
    assert not laws.LawCheck("x", float("nan"), 1.0).holds
