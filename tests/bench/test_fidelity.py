"""What the ladder concludes from rows, its cases, its figures, and one small run of all of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

from hypic_sdk.bench.divergence import first_left
from hypic_sdk.bench.fidelity import Plan, measure, write_json
from hypic_sdk.bench.fidelity_arms import CONTROL_ARMS, DEFAULT, FULL, MODE_ARMS, Row
from hypic_sdk.bench.fidelity_bits import WarmCold
from hypic_sdk.bench.fidelity_cases import (
    ALL_STRATA,
    ANY_ORDER,
    CUT,
    DUPLICATES,
    STRATA,
    CaseSizes,
    make_cases,
    with_more,
)
from hypic_sdk.bench.fidelity_docs import BEGIN, END, filled, tables
from hypic_sdk.bench.fidelity_rungs import (
    EXACT,
    Law,
    LayerDrift,
    Norms,
    Purity,
    distinct_worlds,
    first_layer_bounds,
)
from hypic_sdk.bench.fidelity_tables import headline
from hypic_sdk.bench.fidelity_verdict import BITE, CONTROLS, NO_SEAM, judge, summarise
from hypic_sdk.bench.modes import parse_servers
from hypic_sdk.bench.subject import load_subject
from hypic_sdk.bench.svg_figure import Point, scatter
from hypic_sdk.bench.sweep import seam_arms
from hypic_sdk.bench.sweep_report import ANCHORED, advice, anchored_pairs, pairs, settings
from hypic_sdk.demo import reader_path
from hypic_sdk.demo.export import save_reader
from hypic_sdk.demo.reader_model import Reader, ReaderConfig
from hypic_sdk.errors import ConfigError
from hypic_sdk.models.base import LayerKind

NORMS = Norms(256, 4, ((0.5, 0.0), (0.9, 0.2)), 0.75)
LAWS = (Law("composition", 1e-14, 1e-10, True),)
PURE = Purity(8, 8, flipped_bit_found=True)
SAME = (WarmCold("all", 5, 5, 5, 5, 0.0, 0.0, flipped_bit_found=True),)
NUM_CASES = 40


def row(arm: str, case: int, em: float, kl: float, live: int = 50, entries: int = -1) -> Row:
    return Row(
        arm, case, "two documents", f"world {case}", 4, em, em, em, kl, kl, 1.0,
        em == 1.0, 400, live, entries,
    )  # fmt: skip


def rows_of(**by_arm: tuple[float, float]) -> list[Row]:
    """EM and KL of arms; those not named are as bad as can be."""
    arms = {FULL: (1.0, 0.0), DEFAULT: (1.0, 1e-3)}
    arms |= dict.fromkeys(CONTROLS, (0.0, 2.0))
    arms |= {name.replace("_", " ") if name not in arms else name: v for name, v in by_arm.items()}
    return [
        row(arm, case, em, kl * (1.0 + 0.1 * (case % 3)), entries=4)
        for arm, (em, kl) in arms.items()
        for case in range(NUM_CASES)
    ]


def test_a_model_that_loses_where_it_must_qualifies():
    verdict = judge(NORMS, LAWS, PURE, SAME, rows_of())
    assert verdict.qualifies
    assert verdict.sees_all_controls
    assert verdict.rungs_hold
    assert all(check.passed for check in verdict.targets)
    assert {check.name for check in verdict.controls} == set(CONTROLS)
    assert headline(verdict).startswith("the model qualifies")


@pytest.mark.parametrize("spared", ["state zeroed", "interior keys removed", "addition"])
def test_a_model_that_does_not_need_what_was_taken_does_not_qualify(spared):
    verdict = judge(NORMS, LAWS, PURE, SAME, rows_of(**{spared: (1.0, 2.0)}))
    assert not verdict.qualifies
    assert verdict.sees_all_controls, "its KL still shows the fault"
    assert "DOES NOT QUALIFY" in headline(verdict)


def test_forgetful_heads_do_not_qualify():
    verdict = judge(replace(NORMS, share_slow=0.3), LAWS, PURE, SAME, rows_of())
    assert not verdict.qualifies


@pytest.mark.parametrize("passing", CONTROLS)
def test_a_fault_that_passes_for_the_default_makes_the_bench_too_weak(passing):
    rows = rows_of(**{passing: (1.0, 1e-3)})
    verdict = judge(NORMS, LAWS, PURE, SAME, rows)
    assert [check.name for check in verdict.controls if not check.passed] == [passing]
    if verdict.qualifies:
        assert "TOO WEAK" in headline(verdict)


def test_a_fault_that_met_no_entries_proves_nothing():
    rows = rows_of()
    rows = [replace(r, num_entries=1) if r.arm == "swapped transitions" else r for r in rows]
    verdict = judge(NORMS, LAWS, PURE, SAME, rows)
    assert [c.name for c in verdict.controls if not c.passed] == ["swapped transitions"]


@pytest.mark.parametrize(
    ("laws", "pure", "same"),
    [
        ((Law("composition", 1e-3, 1e-10, False),), PURE, SAME),
        (LAWS, replace(PURE, num_pure=7), SAME),
        (LAWS, replace(PURE, flipped_bit_found=False), SAME),
        (LAWS, Purity(0, 0, flipped_bit_found=True), SAME),
        (LAWS, PURE, (replace(SAME[0], num_equal=4),)),
        ((), PURE, SAME),
        (LAWS, None, SAME),
        (LAWS, PURE, ()),
    ],
)
def test_a_broken_rung_is_told(laws, pure, same):
    assert not judge(NORMS, laws, pure, same, rows_of()).rungs_hold


@pytest.mark.parametrize("arm", [DEFAULT, EXACT])
@pytest.mark.parametrize("error", [2e-5, 1.1e-2, math.nan, None])
def test_a_first_layer_that_is_off_is_told(arm, error):
    """As by a transition that is two percent too large, which answers hardly show."""
    bounds = {DEFAULT: 3e-4, EXACT: 1e-5}
    found = {DEFAULT: 1e-4, EXACT: 3e-7, arm: error}
    drift = [
        LayerDrift(name, attention, layer, value, value if attention and layer == 0 else 0.0, 0.0)
        for name, value in found.items()
        if value is not None
        for attention in (True, False)
        for layer in (0, 1)
    ]
    verdict = judge(NORMS, LAWS, PURE, SAME, rows_of(), drift=drift, first_layer=bounds)
    is_within = error is not None and error <= bounds[arm]
    assert verdict.rungs_hold == is_within
    (own,) = (check for check in verdict.rungs if check.name == f"state of the first layer, {arm}")
    assert own.passed == is_within


def test_bounds_of_the_first_layer_are_of_the_dtype_and_of_linear_layers(monkeypatch):
    subject = load_subject(None, "cpu")
    assert first_layer_bounds(subject) == {DEFAULT: 3e-4, EXACT: 1e-5}
    subject.model.to(torch.bfloat16)
    assert first_layer_bounds(subject) == {DEFAULT: 3e-3, EXACT: 3e-3}
    layers = (LayerKind.ATTENTION, *subject.model.spec.layers[1:])
    monkeypatch.setattr(subject.model, "spec", replace(subject.model.spec, layers=layers))
    assert not first_layer_bounds(subject)


@pytest.mark.parametrize(
    ("lost", "gained", "within", "surely"),
    [((), (), True, True), ((3,), (), False, False), ((3,), (5,), True, False)],
)
def test_the_targets_are_of_the_mean_and_of_the_whole_interval(lost, gained, within, surely):
    """Of forty prompts one is two and a half points."""
    rows = [
        replace(r, em=0.0)
        if r.case in (lost if r.arm == DEFAULT else gained if r.arm == FULL else ())
        else r
        for r in rows_of()
    ]
    mean, low = judge(NORMS, LAWS, PURE, SAME, rows).targets
    assert (mean.passed, low.passed) == (within, surely)


def test_losses_are_paired_by_prompt():
    rows = [row(FULL, c, float(c % 2), 0.0) for c in range(10)]
    rows += [row("other", c, float(c % 2), 0.5) for c in reversed(range(10))]
    whole = next(one for one in summarise(rows) if one.arm == "other")
    assert (whole.em_loss.low, whole.em_loss.high) == (0.0, 0.0)
    assert whole.em.mean == 0.5
    assert whole.em.low < whole.em.high


SIZES = CaseSizes(1, (2, 3), (100,), 3)


def test_cases_are_the_same_each_time_and_what_they_say():
    cases = make_cases(SIZES)
    assert cases == make_cases(SIZES)
    assert {case.stratum for case in cases} == {*STRATA, DUPLICATES}
    for case in cases:
        assert len(case.glue) == len(case.documents)
        if case.stratum == DUPLICATES:
            assert len(set(case.documents)) == len(case.documents) - 1
    num_prompts = {s: sum(case.stratum == s for case in cases) for s in STRATA}
    assert set(num_prompts.values()) == {SIZES.num_orders * len(SIZES.counts)}
    for stratum in ANY_ORDER:
        orders = [c for c in cases if c.stratum == stratum and len(c.documents) == 3]
        assert len(orders) == 3
        assert len({tuple(sorted(c.documents)) for c in orders}) == 1
        gold = {frozenset(c.documents[at] for at in c.gold) for c in orders}
        assert len(gold) == 1, "the gold documents move with their texts"
    two_hop = next(c for c in cases if c.stratum == "two documents")
    assert not set(two_hop.without_gold().documents) & {two_hop.documents[g] for g in two_hop.gold}
    assert two_hop.closed_book().documents == ()


def test_few_cases_are_spread_over_the_strata():
    few = distinct_worlds(make_cases(SIZES), 6)
    assert len({case.world for case in few}) == 6
    assert len({case.stratum for case in few}) == 6


def test_the_first_layer_that_leaves():
    names = ("0 linear", "1 attention")
    assert first_left([1e-6, 1e-2], names, 0.0) == "1 attention"
    assert first_left([1e-6, 1e-6], names, 0.1) == "logits"
    assert first_left([0.0, 0.0], names, 0.0) == "none"


def test_advice_follows_the_intervals():
    def sweep(kl_of_other: float, live: int, em: float = 1.0, worlds: int = 20):
        rows = [row(FULL, c, 1.0, 0.0, 400) for c in range(worlds)]
        rows += [row("8", c, 1.0, 0.1 + 0.001 * c) for c in range(worlds)]
        rows += [row("4+4", c, em, kl_of_other + 0.001 * c, live) for c in range(worlds)]
        return advice(settings(rows, "8", 20), "8")

    assert "the default stays 8" in sweep(0.1, 50)
    assert "a change of the default is clear" in sweep(0.01, 50)
    assert "the default stays 8" in sweep(0.01, 90), "nearer, but for more tokens"
    assert "for more live tokens: 4+4" in sweep(0.01, 90)
    assert "the default stays 8" in sweep(0.099, 50), "surely nearer, by next to nothing"
    assert sweep(0.01, 50, worlds=6).startswith("6 worlds are too few")


def test_every_anchored_arm_stands_beside_the_same_one_that_is_not():
    arms = {arm.name: arm for arm in seam_arms()}
    anchored = [name for name, arm in arms.items() if arm.anchored]
    assert len(anchored) > 3
    for name in anchored:
        plain = arms[name.removesuffix(ANCHORED)]
        assert replace(arms[name], name=plain.name, anchored=False) == plain
    rows = [row(FULL, c, 1.0, 0.0) for c in range(20)]
    rows += [row("8", c, 0.5, 0.2 + 0.01 * c) for c in range(20)]
    rows += [row("8" + ANCHORED, c, 1.0, 0.1 + 0.01 * c) for c in range(20)]
    [pair] = anchored_pairs(rows)
    assert (pair.name, pair.other, pair.em_more.mean) == ("8" + ANCHORED, "8", 0.5)
    assert pair.kl_more.low == pytest.approx(-0.1)
    assert pair.kl_more.high == pytest.approx(-0.1)
    assert "the default stays 8" in advice(settings(rows, "8", 20), "8"), "an anchor is no seam"


def test_pairs_are_by_prompt_and_of_what_is_there():
    rows = [row("16", c, float(c % 2), 0.1 * c) for c in range(20)]
    rows += [row("8+8", c, 1.0, 0.1 * c - 0.05) for c in reversed(range(20))]
    [pair] = pairs(rows, {"4+4": "8", "8+8": "16"})
    assert (pair.name, pair.other, pair.em_more.mean) == ("8+8", "16", 0.5)
    assert pair.kl_more.high == pytest.approx(-0.05)


def cut_rows(default: float, no_seam: float) -> list[Row]:
    """Full recompute knows cut sentences; so does a share of prompts of the two others."""
    by_arm = {FULL: 1.0, DEFAULT: default, NO_SEAM: no_seam}
    return [
        replace(row(arm, 100 + c, float(c < share * 20), 0.1), stratum=CUT)
        for arm, share in by_arm.items()
        for c in range(20)
    ]


@pytest.mark.parametrize(
    ("default", "no_seam", "is_seen"),
    [
        (1.0, 0.0, True),
        (1.0, 1.0 - BITE, True),
        (1.0, 0.9, False),
        (0.0, 0.0, False),  # what is wrong is not that the seam is gone
        (0.3, 0.2, False),
    ],
)
def test_no_seam_must_bite_on_cut_sentences(default, no_seam, is_seen):
    rows = [*rows_of(**{NO_SEAM: (1.0, 1e-3)}), *cut_rows(default, no_seam)]
    *others, last = judge(NORMS, LAWS, PURE, SAME, rows).controls
    assert last.name == f"{NO_SEAM}, {CUT}s"
    assert last.passed is is_seen
    assert "20 prompts" in last.measured, "of that stratum alone"
    assert [check.name for check in others] == list(CONTROLS)


def test_no_seam_is_asked_of_cut_sentences_where_they_are_and_where_they_should_be():
    without = judge(NORMS, LAWS, PURE, SAME, rows_of(), ("tally",))
    assert len(without.controls) == len(CONTROLS)
    cut_off = judge(NORMS, LAWS, PURE, SAME, rows_of(), ("tally", CUT))
    assert not cut_off.controls[-1].passed
    assert cut_off.controls[-1].measured == "not measured"
    assert not cut_off.sees_all_controls


def test_cut_sentences_are_asked_for_by_name():
    assert with_more(tuple(STRATA), ()) == tuple(STRATA)
    assert with_more(("tally",), (CUT, "tally", CUT)) == ("tally", CUT)
    for name in ALL_STRATA:
        with pytest.raises(ConfigError, match=f"'no such'.*'{name}'"):
            with_more((), ("no such",))
    sizes = CaseSizes(3, (2, 4, 8), (20, 180), 2)
    cases = make_cases(sizes, (CUT,))
    assert len(cases) == 3 * 3 * 2, "as many as of any other: worlds instead of orders"
    tokenizer = load_subject(None, "cpu").tokenizer
    for case in cases:
        first, second = case.gold
        assert second == first + 1
        assert case.documents[second].startswith(case.answer)
        assert case.answer not in case.documents[first][-40:]
        assert not case.documents[first].endswith((".", "!", "?"))
        # a live document would need no seam
        assert len(tokenizer.encode_text(case.documents[second])) >= 64


def test_a_figure_is_well_formed_and_shows_every_point():
    points = [Point("8 & <4>", 50.0, 0.1, 0.05, 0.2), Point("0", 20.0, 0.3, 0.1, 0.4)]
    tree = ElementTree.fromstring(scatter(points, "a < b", "x", "y"))
    circles = [e for e in tree.iter() if e.tag.endswith("circle")]
    assert len(circles) == 2
    assert float(circles[0].get("cx")) > float(circles[1].get("cx"))
    assert float(circles[0].get("cy")) > float(circles[1].get("cy")), "up is more"
    with pytest.raises(ValueError, match="no points"):
        scatter([], "", "", "")


def test_servers_are_named():
    assert parse_servers(["addition=http://h:1"]) == [("addition", "http://h:1")]
    with pytest.raises(ConfigError, match="NAME=URL"):
        parse_servers(["http://h:1"])


def test_a_small_run_of_the_whole_ladder(tmp_path):
    """The packaged reader over very few prompts: every rung and every arm runs, and is told."""
    plan = Plan(CaseSizes(1, (3,), (100,), 1), ("two documents", "tally"), 1, 1, 1, 2)
    lines: list[str] = []
    found = measure(load_subject(None, "cpu"), plan, lines.append, folder=tmp_path)
    arms = {one.arm for one in found.rows}
    assert arms == {FULL, *(arm.name for arm in (*MODE_ARMS, *CONTROL_ARMS))}
    assert found.verdict.rungs_hold
    by_arm = {one.arm: one for one in found.summaries if one.stratum == "all"}
    assert by_arm["prefix_cache"].kl.mean < 1e-9
    assert 0.0 < by_arm[DEFAULT].kl.mean < by_arm["interior keys removed"].kl.mean
    assert by_arm[DEFAULT].live_tokens < by_arm[FULL].live_tokens / 2
    first = {(one.arm, one.layer): one for one in found.drift if one.attention}
    # design 13: the fp32 path with fp32 and with fp16 transitions
    assert first[f"{DEFAULT}, fp32 transition", 0].largest_l2 < 1e-5
    assert first[DEFAULT, 0].largest_l2 < 3e-4
    body = json.loads(write_json(found, tmp_path).read_text())
    lines_of_rows = (tmp_path / "fidelity_rows.jsonl").read_text().splitlines()
    assert len(lines_of_rows) == 1 + len(found.rows)
    text = tables(body)
    page = "before\n{} fidelity -->\n{}{} fidelity -->\nafter\n"
    filled_in = filled(page.format(BEGIN, "old\n", END), {"fidelity": text})
    assert filled_in == page.format(BEGIN, text, END)


@pytest.mark.parametrize("full_layer", [0, 2, 3])
def test_the_ladder_runs_over_a_folder_wherever_its_one_full_attention_layer_stands(
    full_layer, tmp_path
):
    torch.manual_seed(1)
    config = ReaderConfig(
        hidden_size=48, intermediate_size=64, num_layers=4, full_layers=(full_layer,), num_heads=2,
        num_kv_heads=1, head_dim=16, rotary_dim=8, num_key_heads=1, num_value_heads=2, key_dim=8,
        value_dim=12,
    )  # fmt: skip
    save_reader(Reader(config), reader_path(), tmp_path)
    plan = Plan(CaseSizes(1, (3,), (100,), 1), ("two documents",), 1, 1, 1, 1)
    found = measure(load_subject(str(tmp_path), "cpu"), plan, lambda _: None)
    assert found.model == tmp_path.name
    assert {one.arm for one in found.rows} == {
        FULL, *(arm.name for arm in (*MODE_ARMS, *CONTROL_ARMS))
    }  # fmt: skip
    assert all(law.holds for law in found.laws)
    assert found.purity.num_pure == found.purity.num_entries > 0
    [same] = found.warm_cold
    assert same.num_equal == same.num_prompts == same.num_wanted > 0
    assert len(found.norms.by_layer) == 3
    assert {one.layer for one in found.drift} == {0, 1, 2}
    first = {(one.arm, one.layer): one for one in found.drift if one.attention}
    if full_layer:  # in front of the first linear layer, attention has seen other tokens
        assert first[f"{DEFAULT}, fp32 transition", 0].largest_l2 < 1e-5
    assert not found.verdict.qualifies, "weights that were never trained judge nothing"
    assert json.loads(write_json(found, tmp_path).read_text())["model"] == tmp_path.name
