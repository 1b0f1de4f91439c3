"""Way B against the definition, with a stand-in for the library that walks token by token."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.bench import serving_pairs
from hypic_sdk.bench.fla_pair import FlaPair, GatedDeltaOps
from hypic_sdk.bench.serving_floor import Floors
from hypic_sdk.bench.serving_layer import Slabs, cast, cold_runs, first_recurrence
from hypic_sdk.bench.serving_model import TINY_SIZES, Bench, random_model
from hypic_sdk.bench.serving_pairs import exact_pair, pair_by_fla
from hypic_sdk.bench.serving_report import Absent
from hypic_sdk.families.gated_delta_rule import FAMILY
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.items import ColdRun
from hypic_sdk.kernels.segment_scan.op import segment_scan
from tests.closeness import assert_close

CPU = torch.device("cpu")


def by_tokens(
    q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,
    use_qk_l2norm_in_kernel=False, cu_seqlens=None,
):  # fmt: skip
    """The library's contract, by its documentation: packed sequences, [B, T, heads, size]."""
    assert q.shape[0] == 1
    assert output_final_state
    assert scale is not None
    assert initial_state is None or initial_state.shape[0] == len(cu_seqlens) - 1
    dtype, work = v.dtype, torch.promote_types(v.dtype, torch.float32)
    q, k, v, g, beta = (x.to(work) for x in (q, k, v, g, beta))
    group = v.shape[2] // k.shape[2]
    query, key = (x[0].repeat_interleave(group, dim=1) for x in (q, k))
    if use_qk_l2norm_in_kernel:
        query, key = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (query, key))
    out, ends = torch.empty_like(v), []
    for number, (start, stop) in enumerate(itertools.pairwise(cu_seqlens)):
        heads, K, V = v.shape[2], k.shape[3], v.shape[3]
        state = k.new_zeros(heads, K, V) if initial_state is None else initial_state[number]
        for t in range(int(start), int(stop)):
            state = state * g[0, t].exp()[:, None, None]
            error = v[0, t] - torch.einsum("hk,hkv->hv", key[t], state)
            state = state + torch.einsum("hk,hv->hkv", key[t], beta[0, t][:, None] * error)
            out[0, t] = scale * torch.einsum("hk,hkv->hv", query[t], state)
        ends.append(state)
    return out.to(dtype), torch.stack(ends)


STAND_IN = GatedDeltaOps(by_tokens, by_tokens)


def sample(
    lengths: list[int], seed: int, head_tokens: int
) -> tuple[Recurrence, tuple[ColdRun, ...]]:
    recurrence = FAMILY.sample(
        torch.Generator().manual_seed(seed), sum(lengths), 4, 6, 5, torch.float64
    )
    runs, row = [], 0
    for index, count in enumerate(lengths):
        runs.append(ColdRun(row, row + count, 0, count, head_tokens, 0, index, index))
        row += count
    return recurrence, tuple(runs)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.sampled_from([5, 9, 70]), min_size=1, max_size=3),
    head_tokens=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_way_b_gives_outputs_and_pairs_of_the_definition(lengths, head_tokens, seed):
    recurrence, runs = sample(lengths, seed, head_tokens)
    scans = FlaPair(STAND_IN, recurrence.scan_inputs(), runs)
    out, transition, end = scans.pair()
    slabs, want = Slabs(recurrence, len(runs), torch.float64), torch.empty_like(recurrence.value)
    segment_scan(recurrence.scan_inputs(), runs, slabs.states, slabs.transitions, out_LHV=want)
    assert_close("T", transition, slabs.transitions, rel_rms=1e-10)
    assert_close("S", end, slabs.states, rel_rms=1e-10)
    assert_close("outputs", out, want, rel_rms=1e-10)
    assert_close("plain outputs", scans.plain(), want, rel_rms=1e-10)


@pytest.mark.parametrize("forgotten", ["initial_state", "use_qk_l2norm_in_kernel", "beta"])
def test_an_op_that_forgets_an_argument_is_seen_in_the_errors(monkeypatch, forgotten):
    def forgetful(**arguments):
        wrong = {"beta": torch.ones_like(arguments["beta"])}
        return by_tokens(**{**arguments, forgotten: wrong.get(forgotten)})

    bench = Bench(random_model("tiny", CPU), "tiny", CPU, TINY_SIZES)
    errors = {}
    for name, ops in (("right", STAND_IN), ("wrong", GatedDeltaOps(forgetful, forgetful))):
        monkeypatch.setattr(serving_pairs, "fla_ops", lambda _, ops=ops: ops)
        with torch.inference_mode():
            rows = list(pair_by_fla(bench, Floors.of(bench)))
        assert [row.name for row in rows] == [
            "building (T, S), one 4k segment, FLA way B",
            "building (T, S), eight 1k segments, FLA way B",
        ]
        for row in rows:
            assert row.notes["percent_of_plain_scan"] > -100
            assert row.target is None
        errors[name] = max(max(row.notes["error_T"], row.notes["error_S"]) for row in rows)
    assert errors["right"] < 1e-2 < errors["wrong"]


def test_without_the_library_the_arm_says_so_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", None)
    bench = Bench(random_model("tiny", CPU), "tiny", CPU, TINY_SIZES)
    [absent] = pair_by_fla(bench, Floors.of(bench))
    assert isinstance(absent, Absent)
    assert absent.name == "building (T, S), FLA way B"
    assert "flash-linear-attention" in absent.reason


def test_what_it_is_not_written_for_is_refused():
    recurrence, runs = sample([9, 9], 0, 2)
    inputs = recurrence.scan_inputs()
    with pytest.raises(ValueError, match="cover all rows"):
        FlaPair(STAND_IN, inputs, runs[:1])
    with pytest.raises(ValueError, match="head seam"):
        FlaPair(STAND_IN, inputs, sample([9, 9], 0, 0)[1])
    with pytest.raises(ValueError, match="gated delta rule"):
        FlaPair(STAND_IN, inputs.__class__(inputs.query, inputs.key, inputs.value), runs)


def test_the_exact_pair_is_that_of_the_models_first_layer():
    bench = Bench(random_model("tiny", CPU), "tiny", CPU, TINY_SIZES)
    recurrence = first_recurrence(bench, bench.tokens(1, 40))
    transition, end = exact_pair(recurrence, cold_runs([40]))
    interior = cast(recurrence, torch.float64).rows(8, 40).segment_state()
    assert_close("T", transition[0], interior.transition.matrix, rel_rms=1e-10)
    assert_close("S", end[0], interior.end_state, rel_rms=1e-10)
