"""The engine end to end on a CUDA device: laws 1, 2, 4, 5 and 6 for every family."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.config import Determinism
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt
from hypic_sdk.transport.messages import SegmentStatus, TokenEvent, WarmRequest
from tests.closeness import assert_close
from tests.engine.harness import (
    answer,
    drain,
    events_of,
    logprobs,
    report_of,
    request_of,
    token_ids,
    warm,
)
from tests.engine.prompts import inner, prompt_of, tokens
from tests.gpu.engines import engine_on, model_on, two_documents
from tests.plain_context import PlainContext

pytestmark = pytest.mark.gpu

CPU = torch.device("cpu")
# fp64: the design's bound between our own paths; the others: measured on a CPU, and some room
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2}


def full_recompute(
    family: str, prompt: SegmentedPrompt, reply: list[int], dtype: torch.dtype
) -> torch.Tensor:
    """Log-probabilities of the same reply: one plain causal forward on the CPU, no cache.

    The weights are those of the model in `dtype`, taken up to fp64.
    """
    model = model_on(CPU, family, torch.float64)
    if dtype == torch.bfloat16:
        model = _rounded(family)
    plain = PlainContext()
    rows = [plain.logits(model, prompt.token_ids)[-1]]
    rows += [plain.logits(model, [token])[-1] for token in reply[:-1]]
    return torch.stack(rows).log_softmax(-1)


def _rounded(family: str) -> torch.nn.Module:
    rounded = model_on(CPU, family, torch.bfloat16)
    model = model_on.__wrapped__(CPU, family, torch.float64)
    model.load_state_dict({name: x.double() for name, x in rounded.state_dict().items()})
    return model


def check(family: str, prompt: SegmentedPrompt, events: list[TokenEvent], dtype: torch.dtype):
    want = full_recompute(family, prompt, token_ids(events), dtype)
    assert_close("logprobs", logprobs(events), want, rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_law_1_every_token_live_equals_full_recompute(device, family, dtype):
    prompt, _ = two_documents()
    check(family, prompt, answer(engine_on(device, family, dtype), prompt, reuse=False), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_law_2_a_segment_at_position_0_equals_full_recompute(device, family, dtype):
    prompt = prompt_of(inner(tokens(3, 150)), tokens(4, 37))
    engine = engine_on(device, family, dtype)
    for name in ("cold", "warm"):
        events = answer(engine, prompt)
        check(family, prompt, events, dtype)
        assert report_of(events).exact, name


@pytest.mark.parametrize("family", FAMILIES)
def test_law_6_continuing_equals_the_longer_forward(device, family):
    """Turn 2 goes on from the state that turn 1 ended with, decoded reply included."""
    prompt, _ = two_documents()
    engine = engine_on(device, family, torch.float64)
    reply = token_ids(answer(engine, prompt, session_id="s"))
    last = prompt.parts[-1].token_ids + tuple(reply) + tokens(7, 40)
    turn = SegmentedPrompt((*prompt.parts[:-1], PromptPart(Role.TRAILING, last)), prompt.borders)
    continued = answer(engine, turn, session_id="s")
    assert report_of(continued).chain_tokens == prompt.num_tokens + len(reply) - 1
    afresh = answer(engine_on(device, family, torch.float64), turn)
    assert_close("logprobs", logprobs(continued), logprobs(afresh), rel_rms=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_composed_prompt_answers_as_on_a_cpu(device, family, dtype):
    """Segments anywhere, gaps composed and turned: the CPU's engine is the definition here."""
    prompt, documents = two_documents()
    engine = engine_on(device, family, dtype)
    warm(engine, *documents)
    got = answer(engine, prompt)
    assert {s.status for s in report_of(got).segments} == {SegmentStatus.HIT}
    want = answer(engine_on(CPU, family, torch.float64), prompt)
    assert token_ids(got) == token_ids(want)
    assert_close("logprobs", logprobs(got), logprobs(want), rel_rms=BOUNDS[dtype])


def crowd(engine, prompt: SegmentedPrompt) -> list[TokenEvent]:
    """The prompt's answer from a batch that decodes, assembles and computes for others."""
    for seed in (100, 200):
        engine.submit(request_of(two_documents(seed)[0], max_tokens=9))
    engine.warm(WarmRequest("crowd", tuple(inner(tokens(300 + i, 70)) for i in range(3))))
    early = [event for _ in range(5) for event in engine.step()]
    message = request_of(prompt)
    engine.submit(message)
    return events_of([*early, *drain(engine)], message.request_id)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_law_4_warm_equals_cold_bit_for_bit(device, family, dtype):
    """With row-independent arithmetic everywhere, whatever else is in the batch."""
    prompt, documents = two_documents()

    def engine(step_tokens: int = 64):
        return engine_on(device, family, dtype, pair="float16", step_tokens=step_tokens)

    cold = answer(engine(), prompt)
    warmed = engine()
    warm(warmed, *reversed(documents))
    for name, events in {
        "hit": answer(warmed, prompt),
        "chained": answer(warmed, prompt),
        "budgeted": answer(engine(256), prompt),
        "crowded": crowd(engine(), prompt),
    }.items():
        assert torch.equal(logprobs(events), logprobs(cold)), name
        assert token_ids(events) == token_ids(cold)


@pytest.mark.parametrize("determinism", [Determinism.ENTRIES, Determinism.ALL])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_law_5_an_entry_is_a_function_of_its_segment(device, family, dtype, determinism):
    """The same bytes alone, in a crowd, and in forwards of another size."""
    prompt, documents = two_documents()
    seen = []
    for step_tokens, in_a_crowd in ((64, False), (256, False), (64, True)):
        engine = engine_on(device, family, dtype, determinism=determinism, step_tokens=step_tokens)
        if in_a_crowd:
            crowd(engine, prompt)
        else:
            warm(engine, *documents)
        seen.append(engine.entry_digests(documents))
    assert None not in seen[0]
    assert seen[0] == seen[1] == seen[2]
