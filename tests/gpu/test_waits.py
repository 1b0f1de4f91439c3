"""The host waits for the device at the end of a forward, and nowhere in it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from hypic_sdk.config import Determinism
from tests.engine.harness import drain, request_of
from tests.gpu.engines import engine_on, two_documents

pytestmark = [
    pytest.mark.gpu,
    # torch says so once a process, wherever the mode is set first
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]


@pytest.fixture
def watched_model(device: torch.device) -> Iterator[torch.device]:
    """torch warns of every wait of its own while a model runs, and not besides."""
    yield device
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("determinism", [Determinism.ENTRIES, Determinism.OFF])
def test_nothing_in_a_forward_waits_for_the_device(watched_model, determinism):
    """Cold segments of one and of several chunks, gaps, long runs, decode rows."""
    device = watched_model
    engine = engine_on(
        device, "gated_delta_rule", torch.bfloat16, determinism=determinism, step_tokens=512
    )
    runner = engine._runner
    forward, forwards = runner._model.forward, []

    class Watched:
        spec = runner._model.spec
        logits = staticmethod(runner._model.logits)

        @staticmethod
        def forward(ids: torch.Tensor, context: object) -> torch.Tensor:
            torch.cuda.set_sync_debug_mode("error")
            try:
                forwards.append(ids.shape[0])
                return forward(ids, context)
            finally:
                torch.cuda.set_sync_debug_mode("default")

    for seed in (0, 20):
        if seed:  # everything was compiled by the first request
            runner._model = Watched
        prompt, _ = two_documents(seed)
        engine.submit(request_of(prompt, max_tokens=4))
        events = drain(engine)
        assert [event.error for event in events if getattr(event, "error", None)] == []
    assert len(forwards) > 4


def test_a_step_waits_a_few_times_whatever_the_number_of_layers_and_segments(watched_model):
    device = watched_model
    engine = engine_on(device, "gated_delta_rule", torch.bfloat16, determinism=Determinism.OFF)
    for seed in (0, 20):
        prompt, _ = two_documents(seed)
        engine.submit(request_of(prompt, max_tokens=2))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn" if seed else "default")
            steps = 0
            while engine.has_work:
                engine.step()
                steps += 1
            torch.cuda.set_sync_debug_mode("default")
        waits = [str(one.message) for one in told if "synchroniz" in str(one.message)]
    # finite flags, tokens with their log-probabilities
    assert len(waits) <= 10 * steps, waits[:5]
