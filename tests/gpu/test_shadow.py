"""Live checks on a CUDA device tell what a plain forward on the CPU does, eager and on graphs."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.config import ShadowConfig
from hypic_sdk.engine.divergence import divergence_rows
from tests.engine.harness import answer, logprobs, token_ids
from tests.gpu.engines import engine_on, model_on, two_documents
from tests.plain_context import PlainContext

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("graphs", ["off", "auto"])
@pytest.mark.parametrize("family", ["gated_delta_rule", "lightning"])
def test_it_tells_the_divergence_from_a_plain_forward(device, family, graphs):
    shadow = ShadowConfig(idle_s=0.0, share=1.0, max_tokens=1024)
    engine = engine_on(device, family, torch.float32, graphs=graphs, shadow=shadow)
    prompt, _ = two_documents()
    events = answer(engine, prompt, max_tokens=6)
    usage = engine.usage()
    while engine.idle() is not None:
        continue
    assert engine.usage() == usage
    facts = engine.shadow.books.facts()
    assert (facts.num_replies, facts.num_tokens, facts.num_dropped) == (1, 6, 0)
    model = model_on(torch.device("cpu"), family, torch.float64)
    said = token_ids(events)
    full_NV = PlainContext().logits(model, [*prompt.token_ids, *said[:-1]])
    wanted = divergence_rows(full_NV[prompt.num_tokens - 1 :], logprobs(events))
    # fp32 moves a log-probability by 1e-5, and so a divergence by about as much of it
    assert facts.kl_nats == pytest.approx(float(wanted.sum()), rel=1e-2, abs=1e-6)
