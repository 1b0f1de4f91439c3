"""The reuse bench measures what it says: hits are hits, cold is cold, off is off."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from hypic_sdk.bench.reuse import FULL_RECOMPUTE, draw_rounds, make_arms, measure
from hypic_sdk.errors import ConfigError


def test_rounds_are_the_same_each_time_and_differ_among_themselves() -> None:
    assert draw_rounds(4, 6) == draw_rounds(4, 6)
    assert len({one.texts for one in draw_rounds(4, 6)}) > 1
    with pytest.raises(ConfigError, match="999"):
        draw_rounds(1, 999)


def test_each_arm_computes_what_its_name_says() -> None:
    rounds = draw_rounds(3, 3)
    with ExitStack() as stack:
        results = {row.name: row for row in measure(make_arms(stack, None), rounds)}
    warm, cold = results["segments, warm"], results["segments, cold"]
    full = results[FULL_RECOMPUTE]
    assert warm.computed_tokens.maximum < full.computed_tokens.minimum / 3
    # cold computes every document once and then the seams again
    assert cold.computed_tokens.minimum > full.computed_tokens.minimum * 0.9
    assert full.ratio_to_full_recompute.minimum == full.ratio_to_full_recompute.maximum == 1.0
