"""Steps launched before the one before them is read, on a device that runs behind the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from hypic_sdk.engine.engine import Engine
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.transport.messages import SamplingParams
from tests.engine.harness import check_ended, drain, events_of, request_of, token_ids
from tests.engine.prompts import prompt_of, tokens
from tests.engine.replayed import prompts
from tests.gpu.engines import engine_on

pytestmark = [
    pytest.mark.gpu,
    # torch says so once a process, wherever the mode is set first
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]

DRAWN = SamplingParams(
    max_tokens=24, temperature=0.8, top_p=0.9, min_p=0.01, presence_penalty=0.4, seed=3,
    repetition_penalty=1.1, min_tokens=2, logit_bias=((7, 1.0),),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _default_waits() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


def replies(engine: Engine) -> list[list[int]]:
    """Some end by stop tokens, one is cancelled in mid-flight, one comes when others have ended."""
    stops = tuple(range(3, 97, 11))
    messages = [
        request_of(prompt, sampling=replace(DRAWN, seed=seed, stop_token_ids=stops[: seed % 3 * 4]))
        for seed, prompt in enumerate([*prompts(20), *prompts(30)])
    ]
    gone = request_of(prompt_of(tokens(5, 9)), max_tokens=60)
    events = []
    for message in (*messages[:-1], gone):
        engine.submit(message)
    for step in range(12):
        events += engine.step()
        if step == 8:
            engine.cancel(gone.request_id)
            engine.submit(messages[-1])
    events += drain(engine)
    found = []
    for message in messages:
        own = events_of(events, message.request_id)
        check_ended(own)
        found.append(token_ids(own))
    return found


@pytest.mark.parametrize("graphs", ["auto", "off"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_replies_are_those_of_synchronous_steps(device, family, dtype, graphs):
    """With row-independent arithmetic: batches are not the same."""
    found = []
    for overlap in (True, False):
        engine = engine_on(
            device, family, dtype, pair="float16", step_tokens=128, graphs=graphs, overlap=overlap
        )
        found.append([replies(engine) for _ in range(2)])
        if overlap:
            assert engine.step_counts.num_overlapped > 20
    assert found[0] == found[1]


@pytest.mark.parametrize("graphs", ["auto", "off"])
def test_the_host_does_not_wait_while_it_launches(device, graphs):
    """Not for a forward, nor for what is drawn from it: greedily, by chance, with penalties."""
    engine = engine_on(device, "gated_delta_rule", torch.bfloat16, graphs=graphs, overlap=True)
    replies(engine)  # compiled, captured
    launch, launches = engine._runner.launch, []

    def watched(batch):
        launches.append(len(batch.decodes))
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    messages = [
        request_of(prompt_of(tokens(1, 9)), sampling=DRAWN),
        request_of(prompt_of(tokens(2, 9)), sampling=SamplingParams(max_tokens=24)),
    ]
    for message in messages:
        engine.submit(message)
    events = engine.step()  # the prompts, whose tokens are waited for
    engine._runner.launch = watched
    events += drain(engine)
    for message in messages:
        check_ended(events_of(events, message.request_id))
    assert len(launches) > 10
