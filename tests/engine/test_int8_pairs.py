"""Pairs in 8 bits through the whole engine: the laws bit for bit, the bytes, what is refused."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.config import PAIRS, StoreConfig
from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import PinBudgetExhausted
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.store.entry_bytes import entry_tensors
from hypic_sdk.transport.messages import SegmentStatus
from tests.engine.harness import (
    ALL_FAMILIES,
    answer,
    drain,
    engine_of,
    events_of,
    logprobs,
    report_of,
    request_of,
    warm,
)
from tests.engine.prompts import VOCAB, inner, prompt_of, tokens
from tests.engine.replayed import answers, kernels_in_interpreter, prompts, with_graphs
from tests.engine.test_bits import crowd, two_documents


def int8_engine(family: str = "gated_delta_rule", **fields: object) -> Engine:
    return engine_of(family, **{"dtype": torch.float32, "pair": "int8", **fields})


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_laws_4_and_5_hold_bit_for_bit(family):
    """Hits, misses, a mixture, a chain, a crowd; entries alone, together and by a request."""
    prompt, documents = two_documents()
    missing = int8_engine(family)
    cold = answer(missing, prompt)
    assert {one.status for one in report_of(cold).segments} == {SegmentStatus.COLD}
    warmed, wide, mixed = (int8_engine(family, step_tokens=n) for n in (64, 512, 64))
    warm(warmed, *reversed(documents))
    warm(wide, *documents, *(inner(tokens(i + 40, 20)) for i in range(5)))
    warm(mixed, documents[1])
    busy = int8_engine(family, step_tokens=256)
    found = [answer(engine, prompt) for engine in (warmed, warmed, wide, mixed)]
    found.append(crowd(busy, prompt))
    assert {one.status for one in report_of(found[0]).segments} == {SegmentStatus.HIT}
    assert report_of(found[1]).chain_tokens == 420
    for events in found:
        assert torch.equal(logprobs(events), logprobs(cold))
    digests = missing.entry_digests(documents)
    assert None not in digests
    for engine in (warmed, wide, mixed, busy):
        assert engine.entry_digests(documents) == digests


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_replies_are_near_those_of_the_precise_pairs(family):
    """And not the same: the pairs are really read from 8 bits."""
    prompt, _ = two_documents()
    wide, narrow = (
        logprobs(answer(int8_engine(family, pair=pair), prompt, max_tokens=1))
        for pair in ("float32", "int8")
    )
    assert not torch.equal(wide, narrow)
    kl = (wide.exp() * (wide - narrow)).sum(-1)
    assert float(kl.max()) < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of the interpreter's numpy
def test_replays_equal_eager_forwards_bit_for_bit(family):
    """Kernels in interpreter mode; no value is looked at in a forward that is captured."""
    batches = [prompts(20), prompts(30)[1:]]
    with kernels_in_interpreter():
        replaying, eager = (int8_engine(family, step_tokens=128) for _ in range(2))
        counts = with_graphs(replaying)
        got, want = answers(replaying, batches), answers(eager, batches)
    for mine, right in zip(got, want, strict=True):
        assert torch.equal(mine, right)
    assert counts.num_replayed > counts.num_captured >= 1


def test_entries_of_different_formats_never_mix():
    described = [engine_of(dtype=torch.float32, pair=pair).describe() for pair in PAIRS]
    assert len({one.settings.compute_fingerprint for one in described}) == len(PAIRS)
    assert len({one.settings.cache_namespace("") for one in described}) == len(PAIRS)


def test_pins_are_counted_where_pairs_lie():
    engine = int8_engine(budget_bytes=1 << 20)
    limit = engine.describe().store_layout.split(StoreConfig(1 << 20, 64)).num_transition_rows // 2
    engine.pin([inner(tokens(i, 40)) for i in range(limit)])
    with pytest.raises(PinBudgetExhausted) as caught:
        engine.pin([inner(tokens(999, 40))])
    assert caught.value.details["pool"] == "transition_rows"


def test_what_is_not_finite_fails_its_request_and_leaves_no_entry():
    model = build_tiny("gated_delta_rule", seed=1, dtype=torch.float32, layers="LAL")
    with torch.no_grad():
        model.embedding.weight[VOCAB - 1] = float("nan")
    engine = int8_engine(model=model)
    clean = [t for t in tokens(1, 80) if t != VOCAB - 1]
    bad, good = inner((*clean[:40], VOCAB - 1, *clean[40:50])), inner(clean[:50])
    messages = [request_of(prompt_of(document, (5, 6))) for document in (bad, good)]
    for message in messages:
        engine.submit(message)
    events = drain(engine)
    errors = [events_of(events, message.request_id)[-1].error for message in messages]
    assert errors[0]["code"] == "numerics_error"
    assert errors[1] is None
    assert engine.entry_digests([bad])[0] is None
    assert engine.entry_digests([good])[0] is not None


def test_finiteness_is_read_from_every_part_that_can_tell():
    """Numbers of 8 bits can not: a row that is not finite has a scale that is not."""
    engine = int8_engine()
    warm(engine, inner(tokens(1, 40)))
    slabs, (resident,) = engine._store.slabs, engine._store._memory.segments.held.values()
    entry, pairs = resident.entry, engine._store.slabs.pairs

    def is_finite() -> bool:
        return all(bool(torch.isfinite(t).all()) for t in entry_tensors(slabs, entry))

    assert is_finite()
    for slab in (pairs.state_scales, pairs.transition_scales, pairs.diagonals):
        place = slab[entry.transition_slot, -1].view(-1)
        kept, place[-1] = place[-1].clone(), float("nan")
        assert not is_finite()
        place[-1] = kept
    tail = slabs.conv_tails[entry.state_slot].view(-1)
    tail[-1] = float("inf")
    assert not is_finite()
