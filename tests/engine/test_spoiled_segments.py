"""Segments that are not finite, beside others of the same step."""

from __future__ import annotations

import pytest

from hypic_sdk.prompt.segment import PromptPart
from tests.engine.harness import check_ended, drain, engine_of, events_of, request_of, spoil
from tests.engine.prompts import inner, prompt_of, tokens


def documents(*lengths: int) -> list[PromptPart]:
    return [inner(tokens(seed, length)) for seed, length in enumerate(lengths, 30)]


@pytest.mark.parametrize("which", [0, 1])
def test_segments_that_nobody_wants_any_more_are_given_up_in_the_step_they_end(which):
    """Their only request failed in that step with another one of its segments."""
    engine = engine_of("gated_delta_rule", step_tokens=512)
    parts = documents(40, 50)
    spoil(engine, parts[which])
    engine.submit(request_of(prompt_of(*parts, tokens(70, 9))))
    (event,) = drain(engine)
    assert event.error["code"] == "numerics_error"
    assert not engine.probe(parts)[which]
    engine.check()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_who_does_not_wait_for_it_goes_on(which):
    engine = engine_of("gated_delta_rule", step_tokens=512)
    parts = documents(40, 50, 60)
    spoil(engine, parts[which])
    bad = request_of(prompt_of(*parts, tokens(70, 9)))
    others = [part for part in parts if part is not parts[which]]
    good = request_of(prompt_of(*others, tokens(71, 9)))
    for message in (bad, good):
        engine.submit(message)
    events = drain(engine)
    (failed,) = events_of(events, bad.request_id)
    assert failed.error["code"] == "numerics_error"
    check_ended(events_of(events, good.request_id))
    assert engine.probe(parts) == [index != which for index in range(3)]
