"""Every request draws from its own seed and the length of its reply, in any company."""

from __future__ import annotations

import torch

from hypic_sdk.config import ReuseConfig
from hypic_sdk.engine.plan import layout_prompt
from hypic_sdk.engine.request import Reply, Request
from hypic_sdk.engine.sampling import sample_replies
from hypic_sdk.transport.messages import EngineRequest, SamplingParams
from tests.engine.prompts import prompt_of

VOCAB = 1000


def request(num_drawn: int = 0, seed: int = 7, **params: object) -> Reply:
    prompt = prompt_of((1,))
    layout = layout_prompt(prompt, ReuseConfig(), conv_width=1, namespace="", chunk_tokens=64)
    message = EngineRequest("r", prompt, SamplingParams(**{"temperature": 1.0, **params}))
    made = Request(
        message,
        layout,
        uses_segments=True,
        uses_chains=True,
        max_tokens=9,
        seed=seed,
        now_s=0.0,
        stamp=0,
    )
    reply = made.replies[0]
    reply.token_ids = [1] * num_drawn
    return reply


def draw(*requests: Reply) -> list[int]:
    """From logits that prefer nothing, so that the noise alone decides."""
    flat = torch.zeros(len(requests), VOCAB)
    return [sampled.token_id for sampled in sample_replies(flat, requests)]


def test_steps_and_seeds_draw_apart():
    assert len(set(draw(*(request(step) for step in range(8))))) == 8
    assert len(set(draw(*(request(0, seed) for seed in range(8))))) == 8


def test_a_draw_does_not_depend_on_its_company():
    alone = [draw(request(step))[0] for step in range(8)]
    assert draw(*(request(step) for step in range(8))) == alone
    assert draw(request(3), request(0, 9)) == [alone[3], draw(request(0, 9))[0]]


def test_each_request_has_its_own_settings():
    logits = torch.zeros(4, VOCAB)
    logits[:, 5], logits[:, 6] = 2.0, 1.0
    got = sample_replies(
        logits,
        [
            request(temperature=0.0),
            request(top_k=1),
            request(top_p=1e-6),
            request(seed=3, temperature=0.0, logprobs=2),
        ],
    )
    assert [sampled.token_id for sampled in got] == [5, 5, 5, 5]
    assert [sampled.logprobs is None for sampled in got] == [True, True, True, False]
    told = got[3].logprobs
    assert told is not None
    want = logits[3].log_softmax(-1)
    assert [token_id for token_id, _ in told.top] == [5, 6]
    assert told.logprob == told.top[0][1] == float(want[5])


def test_logits_that_are_not_finite_are_told():
    logits = torch.zeros(3, VOCAB)
    logits[1, 4] = float("nan")
    got = sample_replies(logits, [request(), request(), request()])
    assert [sampled.is_finite for sampled in got] == [True, False, True]
