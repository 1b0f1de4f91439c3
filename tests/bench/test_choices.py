"""Any choice of live tokens: the engine where it can ask the same; and what choices are."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.bench.choices_report import offsets, results
from hypic_sdk.bench.choices_ways import WIDTHS, offset_arms, ways
from hypic_sdk.bench.chosen_live import ChosenAssembly
from hypic_sdk.bench.fidelity_arms import DEFAULT, FULL, Row
from hypic_sdk.bench.live_choices import (
    BLOCK_TOKENS,
    SEAM_TOKENS,
    Scene,
    by_mass,
    refreshed_blocks,
    refreshed_tokens,
    spread,
    widened,
)
from hypic_sdk.errors import ConfigError
from hypic_sdk.models.tiny_hybrid import build_tiny
from tests.bench.test_faults import REPLY, SEVERAL, probe_of
from tests.closeness import assert_close

FAMILIES = ("gated_delta_rule", "delta_rule", "mamba2", "gla", "kda", "retention")
CPU = torch.device("cpu")


def tiny(family: str, layers: str = "LAL"):
    return build_tiny(family, seed=1, dtype=torch.float64, layers=layers)


def default_live(assembly: ChosenAssembly) -> torch.Tensor:
    live_N = torch.ones(assembly.prompt.num_tokens, dtype=torch.bool)
    for start, stop in assembly.segments:
        live_N[start + 8 : stop] = False
    return live_N


@pytest.mark.parametrize("family", FAMILIES)
def test_under_default_seams_it_is_the_engine(family):
    assembly = ChosenAssembly(tiny(family), SEVERAL, CPU)
    wanted = probe_of(family, DEFAULT, "LAL").force(SEVERAL, REPLY)
    found = assembly.force(default_live(assembly), REPLY)
    assert torch.allclose(found, wanted.logits_NV, rtol=1e-9, atol=1e-9)
    other = default_live(assembly)
    other[assembly.segments[1][0] + 20] = True
    moved = assembly.force(other, REPLY) - wanted.logits_NV
    assert moved.abs().max() > 1e-6, "one more live token is seen"


@pytest.mark.parametrize("family", FAMILIES)
def test_with_every_token_live_it_is_full_recompute(family):
    """Design 3.7, law 1."""
    assembly = ChosenAssembly(tiny(family), SEVERAL, CPU)
    wanted = probe_of(family, "full_recompute", "LAL").force(SEVERAL, REPLY)
    everything = torch.ones(SEVERAL.num_tokens, dtype=torch.bool)
    found = assembly.force(everything, REPLY)
    assert torch.allclose(found, wanted.logits_NV, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu_it_is_what_it_is_on_a_cpu(family):
    device = torch.device("cuda")
    wide = ChosenAssembly(tiny(family), SEVERAL, CPU)
    small = build_tiny(family, seed=1, dtype=torch.float32, device=device, layers="LAL")
    found = ChosenAssembly(small, SEVERAL, device)
    live_N = default_live(wide)
    # three layers of ops that are each within 1e-5 in fp32
    logits_NV = found.force(live_N, REPLY)
    assert_close("logits", logits_NV, wide.force(live_N, REPLY).float(), rel_rms=3e-5)
    mass_N = found.trailing_mass(live_N)
    assert_close("attention", mass_N, wide.trailing_mass(live_N), rel_rms=3e-5)


def test_it_says_what_the_engine_says_and_nothing_else():
    model = tiny("gated_delta_rule")
    assembly = ChosenAssembly(model, SEVERAL, CPU)
    live_N = default_live(assembly)
    probe = probe_of("gated_delta_rule", DEFAULT, "LAL")
    ids = probe.read(SEVERAL, 3, ignore_eos=True).token_ids
    end = int(assembly.force(live_N, ids)[-1].argmax())
    assert assembly.says(live_N, ids) == (end in model.spec.eos_token_ids)
    model.spec = replace(model.spec, eos_token_ids=(end,))
    assert assembly.says(live_N, ids)
    assert not assembly.says(live_N, (*ids[:-1], (ids[-1] + 1) % 97))
    assert not assembly.says(live_N, ids[:-1])


def test_the_trailing_parts_attention_is_whole_and_goes_nowhere_it_can_not():
    assembly = ChosenAssembly(tiny("gated_delta_rule"), SEVERAL, CPU)
    mass_N = assembly.trailing_mass(default_live(assembly))
    assert mass_N.shape == (SEVERAL.num_tokens,)
    assert float(mass_N.sum()) == pytest.approx(1.0)
    assert bool((mass_N > 0).all())
    # the last token is seen by itself alone, the first by all of the trailing part
    share = 1.0 / len(SEVERAL.parts[-1].token_ids)
    assert float(mass_N[-1]) < share
    without = ChosenAssembly(tiny("gated_delta_rule", "L"), SEVERAL, CPU)
    assert not without.trailing_mass(default_live(without)).any()


def test_rotary_keys_in_linear_layers_are_refused():
    with pytest.raises(ConfigError, match="rotary"):
        ChosenAssembly(tiny("lightning"), SEVERAL, CPU)


SEGMENTS = ((5, 105), (110, 190), (195, 250))


def scene(masses: list[float]) -> Scene:
    mass_N = torch.zeros(270, dtype=torch.float64)
    for (start, stop), mass in zip(SEGMENTS, masses, strict=True):
        mass_N[start:stop] = mass / (stop - start)
    return Scene(270, SEGMENTS, mass_N, (1,), "seed")


@given(
    total=st.integers(0, 400),
    parts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 90)), min_size=1, max_size=6),
)
def test_what_is_spread_is_all_given_and_none_gets_more_than_its_room(total, parts):
    shares, rooms = zip(*parts, strict=True)
    given_ = spread(total, shares, rooms)
    assert sum(given_) == min(total, sum(rooms))
    assert all(0 <= one <= room for one, room in zip(given_, rooms, strict=True))


def test_it_is_spread_by_shares():
    assert spread(100, [0.5, 0.3, 0.2], [90, 90, 90]) == [50, 30, 20]
    assert spread(100, [1.0, 0.0, 0.0], [40, 90, 90]) == [40, 30, 30]
    assert spread(3, [0.0, 0.0], [9, 9]) == [2, 1]


@pytest.mark.parametrize("way", ways(), ids=lambda way: way.name)
def test_a_choice_is_live_outside_of_segments_and_costs_what_its_control_does(way):
    where = scene([0.1, 0.6, 0.3])
    live_N = way.choice(where)
    assert bool(live_N[where.base()].all()), "default seams are the least"
    assert torch.equal(live_N, way.choice(where)), "the same each time"
    controls = [one for one in ways() if one.name == way.control]
    assert len(controls) == bool(way.control)
    for control in controls:
        if "segment" not in way.name:  # which are not of one length
            assert int(control.choice(where).sum()) == int(live_N.sum())
        assert not control.first_pass


def test_attention_is_followed():
    where = scene([0.1, 0.6, 0.3])
    widths = [int(widened(16, by_mass)(where)[a:b].sum()) for a, b in SEGMENTS]
    assert sum(widths) == 3 * 16
    assert widths[1] > widths[2] > widths[0] >= SEAM_TOKENS
    blocks = refreshed_blocks(2, picked=True)(where)
    assert int(blocks[slice(*SEGMENTS[1])].sum()) == SEAM_TOKENS + 2 * BLOCK_TOKENS
    assert int(refreshed_tokens(9, picked=True)(where)[slice(*SEGMENTS[1])].sum()) == 17
    assert int(refreshed_blocks(2, picked=False)(where).sum()) == int(blocks.sum())


def row(arm: str, case: int, kl: float, live: int) -> Row:
    return Row(
        arm, case, "tally", f"world {case}", 4, 1.0, 1.0, 1.0, kl, kl, 1.0, True, 400, live, -1
    )


def test_a_choice_is_held_against_chance_and_against_the_seam_of_its_price():
    rows = [row(FULL, c, 0.0, 400) for c in range(30)]
    for at, width in enumerate(WIDTHS):
        rows += [row(f"fixed {width}", c, 0.1 - 0.01 * at + c / 1e3, 50 + width) for c in range(30)]
    rows += [row("2 blocks by chance", c, 0.09 + c / 1e3, 66) for c in range(30)]
    rows += [row("2 blocks by attention", c, 0.01 + c / 1e3, 66) for c in range(30)]
    found = {one.name: one for one in results(rows)}
    attended, chance = found["2 blocks by attention"], found["2 blocks by chance"]
    assert (attended.live_tokens, attended.all_tokens) == (66, 66 + 58)
    assert attended.rival == "fixed 64", "58 of the first pass are paid as well"
    assert chance.rival == "fixed 16"
    assert attended.kl_to_control.mean == pytest.approx(-0.08)
    assert attended.pays
    assert not chance.pays, "it has nothing to be better than"
    by_luck = replace(chance, kl_to_rival=attended.kl_to_rival)
    assert not by_luck.pays
    assert not replace(attended, kl_to_control=chance.kl_to_rival).pays
    assert found["fixed 8"].rival == ""


def test_offsets_are_held_against_none():
    names = [arm.name for arm in offset_arms()]
    rows = [row(name, c, 0.1 * at, 50) for at, name in enumerate(names) for c in range(9)]
    right, first, *_ = offsets(rows)
    assert right.kl_more is None
    assert first.kl_more.mean == pytest.approx(0.1)
    assert json.dumps([one.name for one in offsets(rows)])
