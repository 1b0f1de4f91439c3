"""Work memory of unfinished cold segments is bounded, and always comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.engine.cold_memory import MAX_UNFINISHED, ColdArea, ColdMemory
from tests.engine.harness import answer, drain, engine_of, events_of, logprobs, model_of, request_of
from tests.engine.prompts import inner, prompt_of, tokens

LIMIT = 8192  # the tiny model's context


def area() -> ColdArea:
    return ColdArea(model_of("gated_delta_rule").spec, engine_of().describe().settings)


@given(lengths=st.lists(st.integers(1, LIMIT), min_size=1, max_size=12), data=st.data())
def test_never_more_rows_or_tokens_than_the_area_has(lengths, data):
    memory = area()
    held: list[tuple[ColdMemory, int]] = []
    for length in lengths:
        taken = memory.take(length)
        in_use = sum(tokens_held for _, tokens_held in held)
        fits = len(held) < MAX_UNFINISHED and (not held or in_use + length <= LIMIT)
        assert (taken is not None) == fits
        if taken is not None:
            held.append((taken, length))
            assert taken.keys.shape[1] == taken.values.shape[1] == length
        assert len({one.work_slot for one, _ in held}) == len(held) == memory.num_in_use
        if held and data.draw(st.booleans()):
            memory.give_back(*held.pop(data.draw(st.integers(0, len(held) - 1))))
    for one in held:
        memory.give_back(*one)
    assert memory.num_in_use == 0
    assert memory.take(LIMIT) is not None


def test_segments_that_must_wait_for_memory_all_get_their_turn():
    engine = engine_of(max_context_tokens=320)
    prompts = [prompt_of(inner(tokens(i, 250)), (5, 6)) for i in range(4)]
    messages = [request_of(prompt) for prompt in prompts]
    for message in messages:
        engine.submit(message)
    events = drain(engine)
    for message, prompt in zip(messages, prompts, strict=True):
        got = logprobs(events_of(events, message.request_id))
        assert got.equal(logprobs(answer(engine_of(), prompt)))
    assert engine._scheduler._cold._area.num_in_use == 0
