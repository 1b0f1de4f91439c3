"""The choices of live tokens that are compared, and the offsets that are planted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from hypic_sdk.bench import faults
from hypic_sdk.bench.fidelity_arms import DEFAULT, Arm
from hypic_sdk.bench.live_choices import (
    Choice,
    by_answer,
    by_chance,
    by_edge,
    by_mass,
    fixed,
    refreshed_blocks,
    refreshed_segments,
    refreshed_tokens,
    widened,
)

WIDTHS = (8, 16, 32, 48, 64, 96)
OFFSETS = (1, 4, 16, 64, 256, 1024, 4096)
QUICK_OFFSETS = (DEFAULT, "64 further on", "1024 further on", "4096 further on")
QUICK_WORDS = ("fixed", "mean 32", "8 blocks", "128 tokens", "segment")


@dataclass(frozen=True, slots=True)
class Way:
    """A choice of live tokens, whether it needs a first pass, and what it is held against."""

    name: str
    choice: Choice
    first_pass: bool = False
    control: str = ""  # the like choice by chance; none: no such
    needs_gold: bool = False
    is_quick: bool = True  # a part of `--quick`


def ways() -> tuple[Way, ...]:
    """Every choice; those by the answer show what the best choice of segments could give."""
    found = [Way(f"fixed {width}", fixed(width)) for width in WIDTHS]
    for width in (16, 32):
        name = f"mean {width}"
        chance = f"seams by chance, {name}"
        found += [
            Way(chance, widened(width, by_chance)),
            Way(f"seams by attention, {name}", widened(width, by_mass), True, chance),
            Way(f"seams by attention to the edge, {name}", widened(width, by_edge), True, chance),
            Way(f"seams by the answer, {name}", widened(width, by_answer), False, chance, True),
        ]
    for count in (2, 8):
        chance = f"{count} blocks by chance"
        found += [
            Way(chance, refreshed_blocks(count, picked=False)),
            Way(f"{count} blocks by attention", refreshed_blocks(count, picked=True), True, chance),
        ]
    for count in (32, 128):
        chance = f"{count} tokens by chance"
        found += [
            Way(chance, refreshed_tokens(count, picked=False)),
            Way(f"{count} tokens by attention", refreshed_tokens(count, picked=True), True, chance),
        ]
    chance = "a segment by chance"
    found += [
        Way(chance, refreshed_segments(by_chance)),
        Way("a segment by attention", refreshed_segments(by_mass), True, chance),
        Way("the segments of the answer", refreshed_segments(by_answer, 2), False, chance, True),
    ]
    return tuple(
        replace(way, is_quick=any(word in way.name for word in QUICK_WORDS)) for way in found
    )


def offset_arms() -> list[Arm]:
    """The default as it is, then with keys turned as if segments stood further on."""
    shifts = {tokens: partial(faults.shift_keys, num_tokens=tokens) for tokens in OFFSETS}
    wrong = [
        Arm(f"{tokens} further on", plant=partial(faults.planted, fault=shift))
        for tokens, shift in shifts.items()
    ]
    return [Arm(DEFAULT), *wrong]
