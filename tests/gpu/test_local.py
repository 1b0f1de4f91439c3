"""The packaged model on a CUDA device: against the CPU, and through `LocalHypic`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import hypic_sdk.models.loader as loader
from hypic_sdk import LocalHypic
from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.engine.engine import Engine
from hypic_sdk.transport.messages import TokenEvent
from tests.closeness import assert_close
from tests.engine.harness import answer, report_of, token_ids, warm
from tests.engine.prompts import inner, prompt_of, tokens
from tests.plain_context import PlainContext

pytestmark = pytest.mark.gpu

QUESTION = "How many kilograms does the Fenwold clock weigh?"


def ask(local: LocalHypic, names: tuple[str, ...]):
    documents = local.segments.create_many(DOCUMENTS[name] for name in names)
    return local.chat.completions.create(
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
        documents=documents,
        max_tokens=24,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_quickstart(device, dtype):
    config = EngineConfig(device=device.type, dtype=dtype)
    with LocalHypic(config=config) as local:
        first, second = (
            ask(local, names) for names in (("lantern", "clock"), ("clock", "lantern"))
        )
        for reply, status in ((first, "cold"), (second, "hit")):
            assert "38" in reply.choices[0].message.content
            assert [segment.status for segment in reply.cache.segments] == [status] * 2
        assert second.cache.cached_tokens > second.cache.prompt_tokens / 2


def reader_on(device: torch.device, dtype: torch.dtype) -> Engine:
    loaded = loader.load_model(reader_path(), device=device, dtype=dtype)
    return Engine(loaded.model, loaded.fingerprint, EngineConfig(device=device.type))


def told(events: Sequence[TokenEvent]) -> list[dict[int, float]]:
    """For each token of the reply, the log-probabilities that were told, by id."""
    return [dict(step.top) for event in events for step in event.logprobs]


def check(got: list[dict[int, float]], want: list[dict[int, float]], rel_rms: float) -> None:
    """Compare the ids that both tell; among the last of the best they may differ."""
    pairs = [
        (mine[token], theirs[token])
        for mine, theirs in zip(got, want, strict=True)
        for token in mine.keys() & theirs.keys()
    ]
    assert len(pairs) > 80 * len(want)
    assert_close("logprobs", *torch.tensor(pairs, dtype=torch.float64).T, rel_rms=rel_rms)


def test_the_reader_answers_as_on_a_cpu(device):
    """Token ids at random, documents cold and then from entries, and all of it live."""
    documents = [inner(tokens(i, 150)) for i in range(2)]
    prompt = prompt_of(tokens(5, 12), *documents, tokens(6, 30))
    engines = [reader_on(place, torch.float32) for place in (device, torch.device("cpu"))]
    for engine in engines:
        warm(engine, documents[1])
    for reuse in (False, True, True):
        got, want = (answer(engine, prompt, reuse=reuse) for engine in engines)
        assert token_ids(got) == token_ids(want)
        assert report_of(got).segment_tokens == report_of(want).segment_tokens
        # transitions are kept in fp16: a value between two of its numbers may round either way
        check(told(got), told(want), rel_rms=1e-3 if reuse else 1e-5)


def test_the_reader_live_equals_a_plain_forward(device):
    prompt, plain = prompt_of(tokens(1, 90)), PlainContext()
    events = answer(reader_on(device, torch.float32), prompt, reuse=False)
    model = loader.load_model(reader_path(), device="cpu", dtype=torch.float64).model
    rows = [plain.logits(model, prompt.token_ids)[-1]]
    rows += [plain.logits(model, [token])[-1] for token in token_ids(events)[:-1]]
    want = [dict(enumerate(row.log_softmax(-1).tolist())) for row in rows]
    check(told(events), want, rel_rms=1e-5)
