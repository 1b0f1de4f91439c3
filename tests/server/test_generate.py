"""The reference's own endpoint: a separator within one text, and nowhere else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from hypic_sdk.transport.messages import EngineRequest, WarmRequest
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import Answer, call, serve_fake

FIRST, SECOND = "Norwick lies on the Ash. ", "Ada lives there. "


@pytest.fixture
def worker() -> PushingWorker:
    return PushingWorker(tiny.tokenizer().encode_text("a town"))


@pytest.fixture
def url(worker: PushingWorker) -> Iterator[str]:
    with serve_fake(worker) as url:
        yield url


def generate(url: str, text: str, **fields: object) -> Answer:
    return call(url, "POST", "/generate", {"text": text, **fields})


def test_warming_up_and_then_asking(url):
    for text in (FIRST, SECOND):
        answer = generate(url, text, sampling_params={"max_new_tokens": 1, "temperature": 0})
        assert answer.json["meta_info"]["cached_tokens"] == 0
        assert answer.json["meta_info"]["completion_tokens"] == 1
    answer = generate(url, f"{FIRST}<<PIC_SEP>>{SECOND}<<PIC_SEP>>Who?")
    report = answer.json["meta_info"]["hypic"]
    assert [one["status"] for one in report["segments"]] == ["hit", "hit"]
    cached = answer.json["meta_info"]["cached_tokens"]
    assert cached == sum(one["reused_tokens"] for one in report["segments"]) > 0
    assert answer.json["text"] == "a town"
    assert answer.json["meta_info"]["finish_reason"]["type"] == "stop"


def test_a_text_between_two_separators_is_one_text(url, worker):
    generate(url, f"<<PIC_SEP>>{FIRST}<<PIC_SEP>>")
    kept, asked = worker.messages
    assert isinstance(kept, WarmRequest)
    assert isinstance(asked, EngineRequest)
    assert [part.token_ids for part in kept.segments] == [asked.prompt.token_ids]


def test_a_text_with_separators_is_not_kept_whole(url, worker):
    generate(url, f"{FIRST}<<PIC_SEP>>Who?")
    assert all(isinstance(message, EngineRequest) for message in worker.messages)


def test_chunks_say_the_whole_text_so_far(url):
    *chunks, done = generate(url, "Who?", stream=True).events
    assert done == "[DONE]"
    texts = [json.loads(chunk)["text"] for chunk in chunks]
    assert texts[-1] == "a town"
    assert all(later.startswith(text) for text, later in itertools.pairwise(texts))


@pytest.mark.parametrize("text", ["", "<<PIC_SEP>>", "<<PIC_SEP>><<PIC_SEP>>"])
def test_nothing_to_answer(url, text):
    assert generate(url, text).status == 400


def test_elsewhere_it_is_text(url, worker):
    text = f"{FIRST}<<PIC_SEP>>{SECOND}"
    call(url, "POST", "/v1/completions", {"prompt": text})
    assert len(worker.last.prompt.parts) == 1
    assert tiny.tokenizer().decode(worker.last.prompt.token_ids) == text
    assert all(isinstance(message, EngineRequest) for message in worker.messages)
    answer = call(url, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_ids": [1, 2]}, "input_ids"),
        ({"return_logprob": True}, "return_logprob"),
        ({"image_data": ["x"]}, "image_data"),
        ({"lora_path": "x"}, "lora_path"),
        ({"sampling_params": {"max_tokens": 3}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"ebnf": "x"}}, "sampling_params.ebnf"),
        (
            {"sampling_params": {"skip_special_tokens": False}},
            "sampling_params.skip_special_tokens",
        ),
    ],
)
def test_what_would_change_the_reply_is_refused_by_name(url, worker, fields, param):
    answer = generate(url, FIRST, **fields)
    assert (answer.status, answer.error["code"]) == (400, "unsupported_option")
    assert answer.error["param"] == param
    assert not worker.messages


@pytest.mark.parametrize(
    "fields",
    [
        {"rid": "mine", "log_metrics": False, "nobody_knows": 1},
        {"return_logprob": False, "image_data": None, "sampling_params": None},
        {"sampling_params": {"temperature": None, "n": None, "skip_special_tokens": True}},
    ],
)
def test_what_changes_nothing_is_passed_over(url, fields):
    answer = generate(url, f"{FIRST}<<PIC_SEP>>Who?", **fields)
    assert (answer.status, answer.json["text"]) == (200, "a town")
