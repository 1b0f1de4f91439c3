"""What an engine promises beside the laws: sharing, room, deadlines, failures, endings."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hypic_sdk.engine import context
from hypic_sdk.engine.batch import FiniteFlags
from hypic_sdk.engine.context import TableContext
from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import RequestError
from hypic_sdk.layers.context import ForwardContext
from hypic_sdk.models.base import ModelSpec
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.prompt.segment import BorderKind, PromptPart, SegmentedPrompt
from hypic_sdk.store.entry_bytes import entry_tensors
from hypic_sdk.transport.messages import (
    FinishReason,
    MissReason,
    SamplingParams,
    SegmentStatus,
    TokenEvent,
    WarmRequest,
)
from tests.engine.harness import (
    answer,
    check_ended,
    check_idle,
    drain,
    engine_of,
    events_of,
    logprobs,
    model_of,
    report_of,
    request_of,
    token_ids,
    warm,
)
from tests.engine.prompts import VOCAB, inner, prompt_of, tokens


class Spy(nn.Module):
    """A model that counts its rows, and fails or spoils hidden rows when told to."""

    def __init__(self, family: str = "gated_delta_rule") -> None:
        super().__init__()
        self.model = model_of(family)
        self.rows: list[int] = []  # of each forward, padding included
        self.fail_next = False
        self.spoil_token: int | None = None  # rows of this token come out as NaN

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec

    def forward(self, ids_L: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        self.rows.append(int(ids_L.shape[0]))
        if self.fail_next:
            self.fail_next = False
            self.model.forward(ids_L, context)  # half the work is done when it fails
            raise ValueError("the model fell over")
        hidden = self.model.forward(ids_L, context)
        if self.spoil_token is not None:
            hidden = hidden.masked_fill((ids_L == self.spoil_token)[:, None], float("nan"))
        return hidden

    def logits(self, hidden_ND: torch.Tensor, *, row_independent: bool) -> torch.Tensor:
        return self.model.logits(hidden_ND, row_independent=row_independent)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def spied(**settings: object) -> tuple[Engine, Spy]:
    spy = Spy()
    return engine_of(model=spy, **settings), spy


def document(seed: int, length: int = 40) -> PromptPart:
    return inner(tokens(seed, length))


def question(seed: int, *documents: PromptPart) -> SegmentedPrompt:
    return prompt_of(tokens(90, 7), *documents, tokens(seed, 9))


def error_of(events: list[TokenEvent]) -> dict:
    assert [event.finish_reason for event in events[-1:]] == [FinishReason.ERROR]
    assert sum(event.finish_reason is not None for event in events) == 1
    error = events[-1].error
    assert error is not None
    assert error["request_id"] == events[-1].request_id
    return error


# -- shared work


def test_two_requests_that_miss_the_same_segment_compute_it_once():
    engine = engine_of()
    one, two = (request_of(question(seed, document(1, 150))) for seed in (5, 6))
    engine.submit(one)
    engine.submit(two)
    events = drain(engine)
    reports = [report_of(events_of(events, message.request_id)) for message in (one, two)]
    assert [report.cold_tokens for report in reports] == [150, 0]
    assert [r.segments[0].status for r in reports] == [SegmentStatus.COLD] * 2
    assert [r.segments[0].cold_ms > 0 for r in reports] == [True, True]
    assert [r.segments[0].miss_reason for r in reports] == [
        MissReason.NEVER_WARMED,
        MissReason.IN_FLIGHT,
    ]


def test_who_waits_for_anothers_computation_is_told_how_long():
    """By the engine's own clock, from its admission to the entry."""
    clock = Clock()
    engine = engine_of(clock=clock)
    first, second = (request_of(question(seed, document(1, 150))) for seed in (5, 6))
    engine.submit(first)
    engine.step()
    clock.now_s += 10.0
    engine.submit(second)
    engine.step()
    clock.now_s += 2.0
    events = drain(engine)
    report = report_of(events_of(events, second.request_id))
    assert report.segments[0].cold_ms == report.cold_ms == 2000.0
    assert report.cold_tokens == 0
    assert report_of(events_of(events, first.request_id)).segments[0].cold_ms < 2000.0


def test_a_warm_job_and_a_request_share_a_miss():
    engine = engine_of()
    engine.warm(WarmRequest("w", (document(1, 150),)))
    engine.step()
    message = request_of(question(5, document(1, 150)))
    engine.submit(message)
    events = drain(engine)
    check_ended(events_of(events, message.request_id))
    assert report_of(events_of(events, message.request_id)).cold_tokens == 0
    statuses = [event.status for event in events_of(events, "w")]
    assert statuses == [SegmentStatus.COLD, None]


def test_a_segment_that_stands_twice_is_computed_once():
    events = answer(engine_of(), question(5, document(1), document(1)), max_tokens=1)
    report = report_of(events)
    assert report.cold_tokens == 40
    assert [s.status for s in report.segments] == [SegmentStatus.COLD] * 2
    assert [s.cold_ms > 0 for s in report.segments] == [True, False]
    assert report.cold_ms == pytest.approx(sum(s.cold_ms for s in report.segments))


@pytest.mark.parametrize("cancelled", [0, 1])
def test_shared_work_outlives_one_of_its_waiters(cancelled):
    engine = engine_of()
    messages = [request_of(question(seed, document(1, 300))) for seed in (5, 6)]
    for message in messages:
        engine.submit(message)
    engine.step()
    engine.cancel(messages[cancelled].request_id)
    events = drain(engine)
    gone, stays = messages[cancelled], messages[1 - cancelled]
    assert error_of(events_of(events, gone.request_id))["code"] == "request_cancelled"
    kept = events_of(events, stays.request_id)
    check_ended(kept)
    alone = answer(engine_of(), stays.prompt)
    assert torch.equal(logprobs(kept), logprobs(alone))


def test_work_that_nobody_waits_for_is_given_up():
    engine, spy = spied()
    message = request_of(question(5, document(1, 300)))
    engine.submit(message)
    engine.step()
    engine.cancel(message.request_id)
    forwards = len(spy.rows)
    drain(engine)
    assert len(spy.rows) == forwards
    usage = engine.usage()
    assert usage.total.free == usage.budget_bytes
    assert engine.probe([document(1, 300)]) == [False]


# -- warm requests


def test_warming_tells_each_segment_and_then_the_end():
    engine = engine_of()
    warm(engine, document(1))
    parts = [document(1), document(2, 3), document(3, 150), document(3, 150)]
    events = warm(engine, *parts)
    told = {(event.segment_id, event.status) for event in events[:-1]}
    assert told == {
        (parts[0].segment_id, SegmentStatus.HIT),
        (parts[1].segment_id, SegmentStatus.LIVE),  # no interior is left between its seams
        (parts[2].segment_id, SegmentStatus.COLD),
    }
    assert len(events) == len(parts) + 1
    assert engine.probe(parts) == [True, False, True, True]


def test_a_warm_request_can_be_cancelled():
    engine = engine_of()
    engine.warm(WarmRequest("w", tuple(document(i, 200) for i in range(9))))
    for _ in range(3):
        engine.step()
    engine.cancel("w")
    events = events_of(drain(engine), "w")
    assert events[-1].done
    assert events[-1].error is not None
    assert events[-1].error["code"] == "request_cancelled"


def test_warming_many_segments_never_takes_more_than_the_queue():
    engine = engine_of()
    engine.warm(WarmRequest("w", tuple(document(i, 60) for i in range(30))))
    most = 0
    while engine.has_work:
        engine.step()
        most = max(most, engine.usage().num_filling)
    assert most <= 3
    assert engine.usage().num_segments == 30


def test_warming_takes_no_room_that_a_request_waits_for():
    engine = small_engine()
    holder = request_of(question(5), max_tokens=300)
    waiter = request_of(question(6, document(1, 60)), max_tokens=200)
    engine.submit(holder)
    engine.step()
    engine.submit(waiter)
    engine.step()
    engine.warm(WarmRequest("w", (document(2, 60),)))
    for _ in range(10):
        engine.step()
    assert engine.usage().num_filling == 0
    events = drain(engine)
    assert events_of(events, "w")[0].status is SegmentStatus.COLD
    check_ended(events_of(events, waiter.request_id))


# -- room


def small_engine(**settings: object) -> Engine:
    """Room for about four segments of 64 tokens and a request over them."""
    layout = engine_of(model=settings.get("model")).describe().store_layout
    share = 4 * (layout.segment_bytes(64) + 64 * layout.kv_slot_bytes) + 2 * layout.state_row_bytes
    return engine_of(budget_bytes=share, **settings)


def test_requests_that_exceed_the_pool_together_both_finish():
    engine = small_engine()
    messages = [
        request_of(question(5 + i, *(document(10 * i + j, 60) for j in range(3)))) for i in range(2)
    ]
    for message in messages:
        engine.submit(message)
    events = drain(engine)
    for message in messages:
        got = events_of(events, message.request_id)
        check_ended(got)
        want = answer(engine_of(), message.prompt)
        assert torch.equal(logprobs(got), logprobs(want))
    assert engine.usage().num_evicted > 0


def test_what_never_fits_is_refused_with_both_numbers():
    engine = small_engine()
    message = request_of(question(5, document(1, 600)))
    engine.submit(message)
    error = error_of(events_of(drain(engine), message.request_id))
    assert error["code"] == "pool_exhausted"
    assert error["details"]["retryable"] is False
    assert error["details"]["needed_bytes"] > error["details"]["limit_bytes"] > 0


@pytest.mark.parametrize("family", ["gated_delta_rule", "gla", "lightning"])
@pytest.mark.parametrize("expected_segment_tokens", [16, 64, 300])
@pytest.mark.parametrize(
    "fields", [{"num_replies": 30, "max_tokens": 2}, {"max_tokens": 1500}, {"max_tokens": 9}]
)
def test_the_budget_that_a_refusal_asks_for_is_enough(family, expected_segment_tokens, fields):
    """And not much more than enough."""
    settings = {"expected_segment_tokens": expected_segment_tokens, "max_context_tokens": 4096}
    layout = engine_of(family).describe().store_layout
    rows = 2 * layout.state_row_bytes + layout.transition_row_bytes
    least = rows + 2 * expected_segment_tokens * layout.kv_slot_bytes
    segments = [document(seed, 200) for seed in range(6)]
    engine = engine_of(family, budget_bytes=least, **settings)
    engine.submit(request_of(question(5, *segments), **fields))
    error = error_of(drain(engine))
    assert error["details"]["setting"] == "budget_bytes"
    assert error["details"]["budget_bytes"] == least
    assert str(least) in error["message"]
    enough = error["details"]["enough_bytes"]
    assert str(enough) in error["message"]
    for budget_bytes, is_enough in ((enough, True), (int(0.98 * enough), False)):
        other = engine_of(family, budget_bytes=budget_bytes, **settings)
        other.submit(request_of(question(5, *segments), **fields))
        assert (drain(other)[-1].error is None) is is_enough


def test_a_segment_to_warm_that_never_fits_is_told_and_the_rest_goes_on():
    engine = small_engine()
    events = warm(engine, document(1, 600), document(2, 40))
    assert events[0].error is not None
    assert events[0].error["code"] == "pool_exhausted"
    assert events[1].status is SegmentStatus.COLD


def test_waiting_for_room_ends_with_both_numbers():
    clock = Clock()
    engine = small_engine(admission_timeout_s=10.0, clock=clock)
    holder = request_of(question(5, document(1, 60)), max_tokens=320)
    waiter = request_of(question(6, document(2, 60)), max_tokens=200)
    engine.submit(holder)
    engine.submit(waiter)
    for _ in range(5):
        engine.step()
    clock.now_s += 11.0
    events = engine.step()
    error = error_of(events_of(events, waiter.request_id))
    assert error["code"] == "pool_exhausted"
    assert error["details"]["needed_bytes"] > error["details"]["available_bytes"] >= 0
    check_names_what_to_change(error)
    check_ended(events_of(drain(engine), holder.request_id))


def check_names_what_to_change(error: dict) -> None:
    details, said = error["details"], error["message"]
    assert f"--cache-mib to {details['enough_mib']} (budget_bytes from" in said
    assert "--segment-tokens (expected_segment_tokens, now 64)" in said
    assert details["enough_bytes"] > details["budget_bytes"]


def test_a_segment_that_waits_for_room_in_vain_is_told_both_numbers():
    clock = Clock()
    engine = small_engine(admission_timeout_s=10.0, clock=clock)
    holder = request_of(question(5), max_tokens=440)
    engine.submit(holder)
    engine.step()
    engine.warm(WarmRequest("w", (document(1, 100),)))
    engine.step()
    clock.now_s += 11.0
    events = engine.step()
    error = events_of(events, "w")[0].error
    assert "no room for the segment within 10 s" in error["message"]
    assert error["details"]["needed_bytes"] > error["details"]["available_bytes"] >= 0
    check_names_what_to_change(error)
    check_ended(events_of(drain(engine), holder.request_id))


def test_a_full_queue_refuses_at_once():
    engine = engine_of(max_waiting=2, max_requests=1)
    messages = [request_of(question(i, document(1))) for i in range(3)]
    for message in messages:
        engine.submit(message)
    events = drain(engine)
    assert error_of(events_of(events, messages[2].request_id))["code"] == "queue_full"
    for message in messages[:2]:
        check_ended(events_of(events, message.request_id))


def test_an_entry_that_was_dropped_for_room_says_so():
    engine = small_engine()
    warm(engine, *(document(i, 60) for i in range(9)))
    assert engine.probe([document(0, 60)]) == [False]
    report = report_of(answer(engine, question(5, document(0, 60), document(99, 60))))
    reasons = [segment.miss_reason for segment in report.segments]
    assert reasons == [MissReason.EVICTED, MissReason.NEVER_WARMED]


# -- time


def test_a_deadline_ends_a_request_wherever_it_is():
    clock = Clock()
    engine = engine_of(clock=clock)
    decoding = request_of(question(5), max_tokens=500, timeout_s=5.0)
    computing = request_of(question(6, document(1, 300)), timeout_s=5.0)
    patient = request_of(question(7))
    for message in (decoding, computing, patient):
        engine.submit(message)
    events = [event for _ in range(3) for event in engine.step()]
    clock.now_s += 6.0
    events += engine.step()
    assert error_of(events_of(events, decoding.request_id))["code"] == "deadline_exceeded"
    assert events_of(events, decoding.request_id)[-1].report is not None
    assert error_of(events_of(events, computing.request_id))["code"] == "deadline_exceeded"
    events += drain(engine)
    check_ended(events_of(events, patient.request_id))


# -- failures


def test_a_failing_forward_fails_its_requests_and_nobody_else():
    engine, spy = spied()
    warm(engine, document(1))
    inside = [
        request_of(question(5, document(1)), max_tokens=50),
        request_of(question(6, document(2, 300))),
    ]
    for message in inside:
        engine.submit(message)
    engine.step()
    spy.fail_next = True
    events = engine.step()
    for message in inside:
        assert error_of(events_of(events, message.request_id))["code"] == "worker_error"
    check_idle(engine)
    assert engine.probe([document(2, 300)]) == [False]
    got = answer(engine, question(6, document(2, 300), document(1)))
    want = answer(engine_of(), question(6, document(2, 300), document(1)))
    assert torch.equal(logprobs(got), logprobs(want))


def test_logits_that_are_not_finite_fail_one_request():
    engine, spy = spied()
    spy.spoil_token = VOCAB - 1
    good = request_of(question(5))
    bad = request_of(prompt_of(tokens(90, 7), (5, 6, VOCAB - 1)))
    assert VOCAB - 1 not in good.prompt.token_ids
    for message in (good, bad):
        engine.submit(message)
    events = drain(engine)
    error = error_of(events_of(events, bad.request_id))
    assert error["code"] == "numerics_error"
    assert error["details"] == {"reply_index": 0, "position": 10}
    check_ended(events_of(events, good.request_id))


def test_a_segment_that_is_not_finite_leaves_no_entry():
    engine = engine_of()
    spoilt = document(1)
    store = engine._store
    original = engine._runner._finite_flags
    # what a NaN in any slab would say
    engine._runner._finite_flags = lambda batch, *_: (
        lambda: FiniteFlags(
            tuple(not step.is_last for step in batch.colds), tuple(() for _ in batch.assemblies)
        )
    )
    messages = [request_of(question(seed, spoilt)) for seed in (5, 6)]
    other = request_of(question(7))
    for message in (*messages, other):
        engine.submit(message)
    engine.warm(WarmRequest("w", (spoilt,)))
    events = drain(engine)
    for message in messages:
        error = error_of(events_of(events, message.request_id))
        assert error["code"] == "numerics_error"
        assert error["details"] == {"segment_id": spoilt.segment_id, "num_tokens": 40}
        assert spoilt.segment_id in error["message"]
    assert events_of(events, "w")[0].error["code"] == "numerics_error"
    assert events_of(events, "w")[-1].done
    check_ended(events_of(events, other.request_id))
    assert store.usage().num_segments == 0
    engine._runner._finite_flags = original
    answer(engine, question(5, spoilt))
    assert engine.probe([spoilt]) == [True]


def test_what_one_layer_finds_counts_whatever_later_layers_find(monkeypatch):
    engine, found = engine_of(), []
    original = context.segment_scan

    def scan(*args, **kwargs):
        finite = original(*args, **kwargs)
        found.append(finite if found else torch.zeros_like(finite))
        return found[-1]

    monkeypatch.setattr(context, "segment_scan", scan)
    message = request_of(question(5, document(1)))
    engine.submit(message)
    error = error_of(events_of(drain(engine), message.request_id))
    assert error["code"] == "numerics_error"
    assert len(found) > 1
    assert found[-1].all()


def test_a_poisonous_token_hurts_its_own_segment_only():
    """A NaN that the model makes itself, in a batch with others; its slots are used again."""
    model = build_tiny("gated_delta_rule", seed=1, dtype=torch.float64, layers="LAL")
    with torch.no_grad():
        model.embedding.weight[VOCAB - 1] = float("nan")
    engine = small_engine(model=model, step_tokens=256)
    poisonous = inner((*tokens(1, 40), VOCAB - 1, *tokens(2, 9)))
    clean = [inner([t for t in tokens(i, 50) if t != VOCAB - 1]) for i in range(3, 6)]
    bad = request_of(question(5, poisonous))
    good = request_of(question(5, *clean[:2]))
    for message in (bad, good):
        engine.submit(message)
    events = drain(engine)
    error = error_of(events_of(events, bad.request_id))
    assert error["code"] == "numerics_error"
    check_ended(events_of(events, good.request_id))
    assert engine.probe([poisonous, *clean]) == [False, True, True, False]
    for prompt in (question(5, *clean), question(5, clean[2])):
        want = logprobs(answer(engine_of(model=model), prompt))
        assert torch.equal(logprobs(answer(engine, prompt)), want)


@pytest.mark.parametrize("session_id", [None, "s"])
def test_a_snapshot_that_is_not_finite_is_not_kept(session_id):
    """Nor is any after it; those before the poisonous token are."""
    model = build_tiny("gated_delta_rule", seed=1, dtype=torch.float64, layers="LAL")
    with torch.no_grad():
        model.embedding.weight[VOCAB - 1] = float("nan")
    clean = [t for t in tokens(1, 60) if t != VOCAB - 1]
    text = (*clean[:30], VOCAB - 1, *clean[30:])
    borders = [(20, BorderKind.LEADING), (35, BorderKind.MESSAGE), (45, BorderKind.PROMPT)]
    engine = engine_of(model=model)
    message = request_of(prompt_of(text, borders=borders), session_id=session_id)
    engine.submit(message)
    error = error_of(events_of(drain(engine), message.request_id))
    assert error["code"] == "numerics_error"
    assert engine._store.chain_positions(message.namespace) == [20]


@pytest.mark.parametrize("slab", ["states", "conv_tails"])
def test_a_snapshots_own_bytes_are_looked_at(slab):
    """The rows may be finite and the state behind them not."""
    engine = engine_of()
    original = engine._runner._model.forward
    memory = getattr(engine._store.slabs, slab)

    def spoiling(ids, context):
        hidden = original(ids, context)
        memory[:, -1].view(len(memory), -1)[:, -1] = float("nan")
        return hidden

    engine._runner._model = SimpleNamespace(
        forward=spoiling, logits=engine._runner._model.logits, spec=engine._runner._model.spec
    )
    prompt = prompt_of(tokens(1, 30), borders=[(20, BorderKind.LEADING), (28, BorderKind.PROMPT)])
    engine.submit(request_of(prompt, max_tokens=1, session_id="s"))
    drain(engine)
    assert engine._store.chain_positions("") == []
    engine._runner._model.forward = original
    engine.submit(request_of(prompt, max_tokens=1, session_id="s"))
    drain(engine)
    assert engine._store.chain_positions("") == [20, 28, 30]


def test_every_row_of_a_layers_output_is_written(monkeypatch):
    """Outputs begin as whatever lies in memory: here as what is no number."""
    prompt = question(5, document(1), document(2, 90), document(3, 20))
    wanted = token_ids(answer(engine_of("gated_delta_rule"), prompt))
    make = TableContext._output

    def poisoned(self, like):
        out = make(self, like)
        out[: self._table.num_rows] = math.nan
        return out

    monkeypatch.setattr(TableContext, "_output", poisoned)
    engine = engine_of("gated_delta_rule")
    assert token_ids(answer(engine, prompt)) == wanted  # cold
    assert token_ids(answer(engine, prompt)) == wanted  # from its entries


def test_finiteness_is_read_from_what_was_written():
    """The check that the test above replaces: a NaN anywhere in the entry is seen."""
    engine = engine_of()
    warm(engine, document(1))
    slabs, store = engine._store.slabs, engine._store
    (resident,) = store._memory.segments.held.values()
    entry = resident.entry

    def is_finite() -> bool:
        return all(bool(torch.isfinite(t).all()) for t in entry_tensors(slabs, entry))

    assert is_finite()
    places = [
        slabs.states[entry.state_slot, -1],
        slabs.conv_tails[entry.state_slot, -1],
        slabs.transitions[entry.transition_slot, -1],
        slabs.keys[-1, entry.kv_slots[-1]],
        slabs.values[-1, entry.kv_slots[0]],
    ]
    for place in places:
        kept = place.flatten()[-1].clone()
        place.view(-1)[-1] = float("nan")
        assert not is_finite()
        place.view(-1)[-1] = kept
    assert is_finite()


def test_bad_requests_end_with_typed_errors_and_touch_nothing():
    engine = engine_of(max_context_tokens=64)
    cases = {
        "invalid_request": request_of(prompt_of((1, VOCAB))),
        "context_length_exceeded": request_of(prompt_of(tokens(1, 64))),
    }
    bad_sampling = request_of(prompt_of((1, 2)), sampling=SamplingParams(temperature=-1.0))
    for message in (*cases.values(), bad_sampling):
        engine.submit(message)
    events = drain(engine)
    for code, message in cases.items():
        assert error_of(events_of(events, message.request_id))["code"] == code
    too_long = error_of(events_of(events, cases["context_length_exceeded"].request_id))
    assert too_long["details"] == {"num_tokens": 64, "limit_tokens": 64}
    assert error_of(events_of(events, bad_sampling.request_id))["code"] == "invalid_request"
    engine.warm(WarmRequest("w", (document(1, 65),)))
    (event,) = drain(engine)
    assert event.done
    assert event.error["code"] == "context_length_exceeded"


def test_an_id_in_flight_is_not_taken_twice():
    engine = engine_of()
    engine.submit(request_of(question(5), request_id="same"))
    with pytest.raises(RequestError):
        engine.submit(request_of(question(6), request_id="same"))
    check_ended(events_of(drain(engine), "same"))
    engine.submit(request_of(question(6), request_id="same"))
    check_ended(events_of(drain(engine), "same"))
    engine.cancel("same")
    engine.cancel("unknown")


# -- endings


def test_max_tokens_is_clipped_to_the_context():
    engine = engine_of(max_context_tokens=20)
    events = answer(engine, prompt_of(tokens(1, 15)), max_tokens=50)
    assert len(token_ids(events)) == 5
    assert events[-1].finish_reason is FinishReason.LENGTH


def test_max_tokens_0_prepares_everything():
    engine = engine_of()
    prompt = prompt_of(
        tokens(1, 20),
        document(1),
        tokens(2, 9),
        borders=[(20, BorderKind.LEADING), (65, BorderKind.PROMPT)],
    )
    events = answer(engine, prompt, max_tokens=0)
    assert len(events) == 1
    assert token_ids(events) == []
    again = report_of(answer(engine, prompt))
    assert again.chain_tokens == 65
    assert not again.exact


def test_end_and_stop_tokens_end_a_reply_and_are_not_told():
    prompt = question(5)
    free = token_ids(answer(engine_of(), prompt, max_tokens=8))
    stop = free[4]
    first = free.index(stop)
    sampling = SamplingParams(max_tokens=8, stop_token_ids=(stop,), ignore_eos=True)
    events = answer(engine_of(), prompt, sampling=sampling)
    assert token_ids(events) == free[:first]
    assert events[-1].finish_reason is FinishReason.STOP


def test_seeds_draw_the_same_in_any_company():
    sampling = SamplingParams(max_tokens=12, temperature=1.5, seed=7, ignore_eos=True)
    alone = token_ids(answer(engine_of(), question(5), sampling=sampling))
    engine = engine_of()
    messages = [request_of(question(seed), sampling=sampling) for seed in (5, 6, 7)]
    for message in messages:
        engine.submit(message)
    events = drain(engine)
    assert token_ids(events_of(events, messages[0].request_id)) == alone
    other = SamplingParams(max_tokens=12, temperature=1.5, seed=8, ignore_eos=True)
    assert token_ids(answer(engine_of(), question(5), sampling=other)) != alone


def test_logprobs_are_told_as_many_as_asked():
    for wanted in (None, 0, 2):
        sampling = SamplingParams(max_tokens=2, ignore_eos=True, logprobs=wanted)
        events = answer(engine_of(), question(5), sampling=sampling)
        told = [step for event in events for step in event.logprobs]
        assert len(told) == (0 if wanted is None else 2)
        assert [len(step.top) for step in told] == [wanted] * len(told)
        assert [s.token_id for s in told] == token_ids(events)[: len(told)]


# -- namespaces, deletion


def test_namespaces_share_nothing():
    engine = engine_of()
    prompt = prompt_of(tokens(1, 20), document(1), (5,), borders=[(20, BorderKind.LEADING)])
    answer(engine, prompt, namespace="a")
    report = report_of(answer(engine, prompt, namespace="b"))
    assert report.chain_tokens == 0
    assert report.cold_tokens == 40
    assert engine.probe([document(1)]) == [False]
    assert engine.entry_digests([document(1)], "a") != engine.entry_digests([document(1)])


def test_deletion_removes_entry_and_chains_also_under_a_running_request():
    engine = engine_of()
    prompt = prompt_of(tokens(1, 20), document(1, 300), (5, 6), borders=[(321, BorderKind.PROMPT)])
    want = logprobs(answer(engine, prompt))
    engine.delete([document(1, 300)])
    assert engine.probe([document(1, 300)]) == [False]
    message = request_of(prompt)
    engine.submit(message)
    engine.step()
    engine.step()
    engine.delete([document(1, 300)])  # while it is being computed again
    late = request_of(prompt)
    engine.submit(late)
    events = drain(engine)
    for request in (message, late):
        got = events_of(events, request.request_id)
        check_ended(got)
        assert torch.equal(logprobs(got), want)
        assert report_of(got).cold_tokens == 300
    assert engine.probe([document(1, 300)]) == [True]
    engine.clear()
    usage = engine.usage()
    assert usage.total.free == usage.budget_bytes


def test_decoding_no_longer_holds_the_segments():
    engine = engine_of()
    message = request_of(question(5, document(1)), max_tokens=50)
    engine.submit(message)
    while not any(event.token_ids for event in engine.step()):
        pass
    assert engine.delete([document(1)]).removed == 1
    check_ended(events_of(drain(engine), message.request_id))


# -- everything at once


def test_a_thousand_random_requests_leave_nothing_behind():
    draw = random.Random(3)
    model = build_tiny("gla", seed=1, dtype=torch.float64, layers="LA")
    engine = small_engine(model=model, max_requests=8, max_waiting=12, step_tokens=128)
    documents = [document(i, draw.choice([5, 20, 40, 60])) for i in range(12)]
    open_ids: list[str] = []
    ended: dict[str, TokenEvent] = {}

    def step() -> None:
        for event in engine.step():
            if isinstance(event, TokenEvent) and event.finish_reason is not None:
                assert event.request_id not in ended, "a request ended twice"
                ended[event.request_id] = event
                open_ids.remove(event.request_id)
        usage = engine.usage()
        assert usage.total.total == usage.budget_bytes

    for number in range(1000):
        picked = [draw.choice(documents) for _ in range(draw.randrange(0, 4))]
        prompt = prompt_of(
            tokens(1, 20),
            *picked,
            tokens(draw.randrange(9), draw.randrange(1, 30)),
            borders=[(20, BorderKind.LEADING)],
        )
        message = request_of(
            prompt,
            request_id=f"n{number}",
            sampling=SamplingParams(max_tokens=draw.randrange(0, 5)),
            session_id=draw.choice([None, "s1", "s2"]),
            reuse=draw.random() < 0.9,
        )
        engine.submit(message)
        open_ids.append(message.request_id)
        if draw.random() < 0.1 and open_ids:
            engine.cancel(draw.choice(open_ids))
        if number % 50 == 0:
            engine.warm(WarmRequest(f"w{number}", tuple(draw.sample(documents, 3))))
        for _ in range(draw.randrange(0, 4)):
            step()
        if number % 100 == 0:
            engine.check()
    while engine.has_work:
        step()
    check_idle(engine)
    assert len(ended) == 1000
    codes = {event.error["code"] for event in ended.values() if event.error is not None}
    assert codes <= {"request_cancelled", "queue_full"}
    assert sum(event.error is None for event in ended.values()) > 500
