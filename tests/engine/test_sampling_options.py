"""Penalties, biases, least lengths and prompt log-probabilities through a whole engine."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hypic_sdk.config import MODES
from hypic_sdk.prompt.segment import SegmentedPrompt
from hypic_sdk.transport.messages import (
    FinishReason,
    Grammar,
    GrammarKind,
    SamplingParams,
    TokenEvent,
)
from tests.engine.harness import (
    answer,
    drain,
    engine_of,
    events_of,
    logprobs,
    model_of,
    request_of,
    token_ids,
)
from tests.engine.prompts import VOCAB, inner, prompt_of, tokens
from tests.plain_context import PlainContext

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=VOCAB)
EOS = model_of("gated_delta_rule").spec.eos_token_ids


def prompt(seed: int = 5) -> SegmentedPrompt:
    return prompt_of(tokens(90, 7), inner(tokens(1, 40)), tokens(seed, 9))


def edited(events: list[TokenEvent], sampling: SamplingParams, seen: tuple[int, ...]) -> list[int]:
    """What greedy sampling chooses by the definition, from the log-probabilities that were told.

    They are of the model's own logits up to a constant a row, which no penalty but that of
    repetition can tell; it is checked in the kernel's tests and left out here.
    """
    reply: list[int] = []
    for row in logprobs(events).tolist():
        scores = list(row)
        for token_id, value in sampling.logit_bias:
            scores[token_id] += value
        for token_id in set(reply):
            scores[token_id] -= sampling.presence_penalty
            scores[token_id] -= sampling.frequency_penalty * reply.count(token_id)
        if len(reply) < sampling.min_tokens:
            for token_id in (*sampling.stop_token_ids, *EOS):
                scores[token_id] = -math.inf
        reply.append(scores.index(max(scores)))
    return reply


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.4},
        {"frequency_penalty": -1.0, "presence_penalty": 0.3},
        {"logit_bias": ((9, 3.0), (11, 2.5), (12, -100.0))},
        {"logit_bias": ((9, 4.0),), "frequency_penalty": 1.3},
    ],
)
def test_greedy_replies_follow_the_definition(options):
    sampling = replace(GREEDY, **options)
    events = answer(engine_of(), prompt(), sampling=sampling)
    assert token_ids(events) == edited(events, sampling, prompt().token_ids)
    plain = answer(engine_of(), prompt(), sampling=GREEDY)
    assert token_ids(events) != token_ids(plain), "the options of this test change nothing"


def test_a_repetition_penalty_drives_out_what_was_said():
    """Large enough, it leaves only ids that neither prompt nor reply holds."""
    sampling = replace(GREEDY, repetition_penalty=1e6, max_tokens=12)
    # every logit positive: else a penalty of this size would favour what is near 0
    bias = tuple((token_id, 90.0) for token_id in range(VOCAB))
    said = token_ids(answer(engine_of(), prompt(), sampling=replace(sampling, logit_bias=bias)))
    assert len(set(said)) == len(said)
    assert not set(said) & set(prompt().token_ids)


def test_neutral_values_change_nothing_and_neighbours_change_nothing():
    neutral = replace(
        GREEDY,
        temperature=1.2,
        seed=3,
        min_p=0.0,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias=(),
        min_tokens=0,
    )
    alone = answer(engine_of(), prompt(), sampling=neutral)
    engine = engine_of()
    odd = replace(
        neutral,
        min_p=0.5,
        repetition_penalty=3.0,
        presence_penalty=2.0,
        logit_bias=((4, 50.0),),
        min_tokens=9,
    )
    messages = [
        request_of(prompt(seed), sampling=s) for seed, s in ((6, odd), (5, neutral), (7, odd))
    ]
    for message in messages:
        engine.submit(message)
    events = events_of(drain(engine), messages[1].request_id)
    assert token_ids(events) == token_ids(alone)
    assert torch.equal(logprobs(events), logprobs(alone))


def test_min_p_leaves_what_is_likely_enough():
    """At 1 only the likeliest id is left, at any temperature."""
    greedy = token_ids(answer(engine_of(), prompt(), sampling=GREEDY))
    drawn = replace(GREEDY, temperature=5.0, seed=1)
    assert token_ids(answer(engine_of(), prompt(), sampling=drawn)) != greedy
    assert token_ids(answer(engine_of(), prompt(), sampling=replace(drawn, min_p=1.0))) == greedy


@pytest.mark.parametrize("by_eos", [False, True])
def test_end_and_stop_tokens_come_no_sooner_than_min_tokens(by_eos):
    end = EOS[0] if by_eos else 20
    sampling = SamplingParams(
        max_tokens=20, stop_token_ids=() if by_eos else (end,), logit_bias=((end, 100.0),)
    )
    assert token_ids(answer(engine_of(), prompt(), sampling=sampling)) == []
    for least in (1, 7, 20):
        events = answer(engine_of(), prompt(), sampling=replace(sampling, min_tokens=least))
        said = token_ids(events)
        assert len(said) == least
        assert end not in said
        want = FinishReason.LENGTH if least == 20 else FinishReason.STOP
        assert events[-1].finish_reason is want


def test_counts_are_each_replys_own():
    """With a penalty the replies of one request are those of requests of their seeds."""
    sampling = replace(GREEDY, frequency_penalty=2.0, presence_penalty=1.0)
    message = request_of(prompt(), sampling=sampling, num_replies=3)
    engine = engine_of()
    engine.submit(message)
    events = events_of(drain(engine), message.request_id)
    alone = token_ids(answer(engine_of(), prompt(), sampling=sampling))
    for index in range(3):
        assert token_ids([e for e in events if e.reply_index == index]) == alone


BAD = [
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": math.nan}),
    ("temperature", {"temperature": math.inf}),
    ("top_k", {"top_k": -1}),
    ("top_p", {"top_p": 1.1}),
    ("min_p", {"min_p": -0.1}),
    ("min_p", {"min_p": 1.1}),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 25}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("repetition_penalty", {"repetition_penalty": -1.0}),
    ("presence_penalty", {"presence_penalty": 2.1}),
    ("frequency_penalty", {"frequency_penalty": math.nan}),
    ("logit_bias", {"logit_bias": ((VOCAB, 1.0),)}),
    ("logit_bias", {"logit_bias": ((-1, 1.0),)}),
    ("logit_bias", {"logit_bias": ((1, 100.5),)}),
    ("logit_bias", {"logit_bias": ((1, 1.0), (1, 2.0))}),
    ("logit_bias", {"logit_bias": tuple((1, 0.0) for _ in range(2000))}),
    ("stop_token_ids", {"stop_token_ids": (VOCAB,)}),
    ("stop_token_ids", {"stop_token_ids": tuple(range(90)) * 3}),
    ("prompt_logprobs", {"prompt_logprobs": 1}),  # with reuse on
    ("prompt_logprobs", {"prompt_logprobs": 129}),
    ("ignore_eos", {"grammar": Grammar(GrammarKind.JSON)}),
]


@pytest.mark.parametrize(("field", "values"), BAD, ids=[f"{n}-{i}" for i, (n, _) in enumerate(BAD)])
def test_bad_values_are_refused_by_name(field, values):
    engine = engine_of()
    engine.submit(request_of(prompt(), sampling=replace(GREEDY, **values)))
    (event,) = drain(engine)
    assert event.error["code"] in ("invalid_request", "unsupported_option")
    assert event.error["details"]["param"] == field
    assert field in event.error["message"]


# -- log-probabilities of the prompt


def plain_logprobs(prompt: SegmentedPrompt) -> torch.Tensor:
    """[tokens, VOCAB]: what one plain forward gives for the token after each."""
    with torch.inference_mode():
        logits = PlainContext().logits(model_of("gated_delta_rule"), prompt.token_ids)
        return logits.log_softmax(-1)


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_prompt_logprobs_are_those_of_a_plain_forward(max_tokens):
    long = prompt_of(tokens(90, 7), inner(tokens(1, 200)), tokens(5, 90))
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, prompt_logprobs=5)
    engine = engine_of()
    others = [request_of(prompt(seed), max_tokens=40) for seed in (6, 7)]
    for other in others:
        engine.submit(other)
    engine.step()
    message = request_of(long, sampling=sampling, reuse=False, num_replies=2)
    engine.submit(message)
    events = events_of(drain(engine), message.request_id)
    told = events[0].prompt_logprobs
    assert all(event.prompt_logprobs == () for event in events[1:])
    want = plain_logprobs(long)[:-1]
    assert [one.token_id for one in told] == list(long.token_ids[1:])
    got = torch.tensor([one.logprob for one in told], dtype=torch.float64)
    chosen = want.gather(1, torch.tensor(long.token_ids[1:])[:, None])[:, 0]
    torch.testing.assert_close(got, chosen, rtol=1e-9, atol=1e-9)
    ranks = (want > chosen[:, None]).sum(1) + 1
    assert [one.rank for one in told] == ranks.tolist()
    assert max(one.rank for one in told) > 5
    best = want.topk(5).values
    top = torch.tensor([[logprob for _, logprob in one.top] for one in told], dtype=torch.float64)
    torch.testing.assert_close(top, best, rtol=1e-9, atol=1e-9)


def test_prompt_logprobs_in_a_mode_that_reuses_nothing_need_no_word():
    assert "full_recompute" in MODES
    engine = engine_of(mode="full_recompute")
    sampling = SamplingParams(max_tokens=1, ignore_eos=True, prompt_logprobs=0)
    events = answer(engine, prompt(), sampling=sampling)
    assert len(events[0].prompt_logprobs) == prompt().num_tokens - 1
    assert all(one.top == () for one in events[0].prompt_logprobs)
