"""Planted faults are found, controls fail where they must, and watching disturbs nothing."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.bench import faults
from hypic_sdk.bench.fidelity_bits import warm_cold
from hypic_sdk.bench.fidelity_rungs import purity
from hypic_sdk.bench.probe import Probe, inner_parts
from hypic_sdk.bench.scores import relative_l2
from hypic_sdk.config import (
    MODES,
    Determinism,
    EngineConfig,
    ReuseConfig,
    SchedulerConfig,
    SeamRule,
    StoreConfig,
)
from hypic_sdk.engine.divergence import divergence_rows
from hypic_sdk.engine.engine import Engine
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.transport.messages import EngineRequest, SamplingParams
from tests.engine.prompts import VOCAB, inner, prompt_of, tokens

REPLY = tokens(80, 5)
SEVERAL = prompt_of(
    tokens(1, 9), inner(tokens(2, 70)), tokens(3, 3), inner(tokens(4, 61)), inner(tokens(5, 80)),
    tokens(6, 20),
)  # fmt: skip
ALONE = prompt_of(inner(tokens(2, 70)), tokens(6, 20))
EXACT_KL = 1e-15  # fp64 leaves 1e-20 or so; a fault leaves 1e-8 at the very least
FOUND_KL = 1e-9
FAMILIES = ("gated_delta_rule", "mamba2", "gla")


def probe_of(family: str, mode: str, layers: str, *, attends: bool = True) -> Probe:
    model = build_tiny(family, seed=1, dtype=torch.float64, layers=layers)
    config = EngineConfig(
        device="cpu",
        determinism=Determinism.ALL,
        reuse=ReuseConfig(MODES[mode], SeamRule(8, 0), min_segment_tokens=1),
        store=StoreConfig(16 << 20, 64, "float64"),
        scheduler=SchedulerConfig(step_tokens=64, chunk_tokens=64),
    )
    return Probe(model, "test", config, attends=attends)


def kl(probe: Probe, prompt, wanted) -> float:
    return float(divergence_rows(wanted.logits_NV, probe.force(prompt, REPLY).logits_NV).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_with_one_linear_layer_the_default_is_exact_and_every_state_fault_is_found(family):
    """Design 3.7, law 3: composition is exact there, so whatever differs is a fault."""
    wanted = probe_of(family, "full_recompute", "L").force(SEVERAL, REPLY)
    default = probe_of(family, "transition_rope_recompute", "L")
    assert kl(default, SEVERAL, wanted) < EXACT_KL
    for fault in (faults.swap_transitions, faults.zero_states):
        with faults.planted(default, SEVERAL, fault) as num_entries:
            assert num_entries == 3
            assert kl(default, SEVERAL, wanted) > FOUND_KL, fault.__name__
    assert kl(default, SEVERAL, wanted) < EXACT_KL, "what stood there was put back"
    assert kl(probe_of(family, "addition", "L"), SEVERAL, wanted) > FOUND_KL
    no_seam = kl(probe_of(family, "transition_rope", "L"), SEVERAL, wanted)
    # the conv's border is wrong without a seam; without a conv nothing is
    has_conv = default.model.spec.linear.conv_width > 1
    assert (no_seam > FOUND_KL) == has_conv


def test_a_segment_at_the_start_is_exact_and_every_key_fault_is_found():
    """Design 3.7, law 2."""
    wanted = probe_of("gated_delta_rule", "full_recompute", "LAL").force(ALONE, REPLY)
    default = probe_of("gated_delta_rule", "transition_rope_recompute", "LAL")
    assert kl(default, ALONE, wanted) < EXACT_KL
    with faults.planted(default, ALONE, faults.shift_keys):
        assert kl(default, ALONE, wanted) > FOUND_KL
    with faults.hidden_keys(default, ALONE) as num_entries:
        assert num_entries == 1
        assert kl(default, ALONE, wanted) > FOUND_KL
    assert kl(default, ALONE, wanted) < EXACT_KL


def test_without_rotation_several_segments_stand_wrong():
    wanted = probe_of("gated_delta_rule", "full_recompute", "LAL").force(SEVERAL, REPLY)
    near = kl(probe_of("gated_delta_rule", "transition_rope", "LAL"), SEVERAL, wanted)
    wrong = kl(probe_of("gated_delta_rule", "transition", "LAL"), SEVERAL, wanted)
    assert wrong != near
    assert min(wrong, near) > FOUND_KL


def test_hidden_keys_are_those_of_interiors_and_no_others():
    """Hiding them is attention over the other positions alone, written out here."""
    probe = probe_of("gated_delta_rule", "transition_rope_recompute", "LA")
    seen: list[tuple[int, torch.Tensor]] = []
    inner_forward = probe.model.inner.forward

    def spy(ids, context):
        table = context._inner.table
        seen.extend((r.first_position + r.num_rows, r.slots) for r in table.attention_runs)
        return inner_forward(ids, context)

    probe.warm(SEVERAL)
    probe.model.inner.forward = spy
    with faults.hidden_keys(probe, SEVERAL):
        probe.force(SEVERAL, REPLY)
    interiors = [70 - 8, 61 - 8, 80 - 8]
    num_live = SEVERAL.num_tokens + len(REPLY) - sum(interiors)
    assert seen[-1][0] == num_live
    assert seen[-1][1].unique().numel() == num_live


@pytest.mark.parametrize(
    "fault",
    [faults.swap_transitions, faults.shift_keys, faults.zero_states, faults.flip_bit],
)
def test_a_fault_changes_bytes_and_is_taken_back(fault):
    probe = probe_of("gated_delta_rule", "transition_rope_recompute", "LAL")
    probe.warm(SEVERAL)
    parts = inner_parts(SEVERAL)
    before = probe.engine.entry_digests(parts)
    with faults.planted(probe, SEVERAL, fault):
        assert probe.engine.entry_digests(parts) != before
    assert probe.engine.entry_digests(parts) == before
    probe.engine.check()


def test_watching_changes_nothing():
    probe = probe_of("gated_delta_rule", "transition_rope_recompute", "LAL")
    settings = EngineConfig(
        device="cpu", determinism=Determinism.ALL,
        reuse=ReuseConfig(MODES["transition_rope_recompute"], SeamRule(8, 0), 1),
        store=StoreConfig(16 << 20, 64, "float64"),
        scheduler=SchedulerConfig(step_tokens=64, chunk_tokens=64),
    )  # fmt: skip
    plain = Engine(probe.model.inner, "test", settings)
    sampling = SamplingParams(max_tokens=4, logprobs=VOCAB)
    plain.submit(EngineRequest("r", SEVERAL, sampling))
    told = []
    while plain.has_work:
        told += [one for event in plain.step() for one in event.logprobs]
    assert tuple(told) == probe.read(SEVERAL, 4, VOCAB).logprobs


def test_silenced_attention_is_a_model_without_it():
    silent = probe_of("gated_delta_rule", "full_recompute", "LAL", attends=False)
    forced = silent.force(SEVERAL, REPLY)
    assert [float(out.abs().max()) for out in forced.outputs][1] == 0.0
    heard = probe_of("gated_delta_rule", "full_recompute", "LAL").force(SEVERAL, REPLY)
    # the layer before attention cannot tell, the one behind it must
    assert relative_l2(forced.state[0], heard.state[0]) == 0.0
    assert relative_l2(forced.state[1], heard.state[1]) > 1e-3


def test_the_forced_rows_are_those_of_the_reply():
    """Chunked or not, decoded or not: the same distributions as a greedy read tells."""
    probe = probe_of("gated_delta_rule", "full_recompute", "LAL")
    reading = probe.read(SEVERAL, 6, VOCAB)
    forced = probe.force(SEVERAL, reading.token_ids)
    assert forced.logits_NV.shape == (len(reading.token_ids) + 1, VOCAB)
    logprobs = forced.logits_NV.log_softmax(-1)
    for row, told in zip(logprobs, reading.logprobs, strict=False):
        assert float(row[told.token_id]) == pytest.approx(told.logprob, abs=1e-6)
        assert int(row.argmax()) == told.token_id


def test_pure_entries_are_pure_and_a_turned_bit_is_seen():
    probe = probe_of("gated_delta_rule", "transition_rope_recompute", "LAL")
    found = purity(probe, [SEVERAL, ALONE])
    assert (found.num_entries, found.num_pure, found.flipped_bit_found) == (4, 4, True)


def test_warm_is_cold_and_a_spoilt_pool_is_not(monkeypatch):
    probe = probe_of("gated_delta_rule", "transition_rope_recompute", "LAL")
    assert warm_cold(probe, [SEVERAL, ALONE]).num_equal == 2
    read = Probe.read

    def spoilt(self, prompt, *args, **kwargs):
        if not any(self.engine.probe(inner_parts(prompt))):
            return read(self, prompt, *args, **kwargs)
        with faults.planted(self, prompt, faults.zero_states):
            return read(self, prompt, *args, **kwargs)

    monkeypatch.setattr(Probe, "read", spoilt)
    assert warm_cold(probe, [SEVERAL, ALONE]).num_equal == 0


def test_an_impure_pool_is_found(monkeypatch):
    probe = probe_of("gated_delta_rule", "transition_rope_recompute", "LAL")
    digests, calls = Engine.entry_digests, []

    def impure(self, parts, namespace=""):
        calls.append(parts)
        told = digests(self, parts, namespace)
        return [b"other", *told[1:]] if len(calls) == 2 else told

    monkeypatch.setattr(Engine, "entry_digests", impure)
    found = purity(probe, [SEVERAL])
    assert (found.num_entries, found.num_pure) == (3, 2)
