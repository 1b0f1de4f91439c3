"""Texts that no context holds: refused at once, by every call, and nobody waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hypic_sdk.demo import reader_path
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.server.app import create_app
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.service.model_facts import ModelFacts
from tests.server.pushing_worker import PushingWorker
from tests.server.served import call, serve

CONTEXT = 4096
HUGE = 10_000_000
ALPHABET = (" ", "\n", "a", "\u00e9", "<|im_start|>")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    tokenizer = PromptTokenizer.from_folder(reader_path())
    worker = PushingWorker()
    services = ServiceFactory(
        tokenizer=tokenizer,
        template=ChatTemplate.from_folder(reader_path(), tokenizer),
        worker=worker,
        model_name="reader",
        facts=ModelFacts(max_context_tokens=CONTEXT),
    )
    with serve(create_app(services, worker)) as one:
        yield one


def bodies(text: str) -> dict[str, Any]:
    """A call of every kind that takes a text."""
    asked = {"role": "user", "content": "Who?"}
    said = {"role": "user", "content": text}
    return {
        "/v1/chat/completions": {"messages": [said]},
        "/v1/completions": {"prompt": text},
        "/generate": {"text": text},
        "/v1/tokenize": {"messages": [asked], "documents": [{"text": text}]},
        "/v1/prompts/explain": {"messages": [said]},
    }


@pytest.mark.parametrize("letter", ALPHABET, ids=repr)
@pytest.mark.parametrize("path", bodies(""))
def test_a_text_that_no_context_holds_is_refused_at_once(url: str, path: str, letter: str) -> None:
    text = letter * (HUGE // len(letter))
    started_s = time.monotonic()
    answer = call(url, "POST", path, bodies(text)[path])
    assert answer.status == 400, answer.text[:300]
    assert answer.error["code"] == "context_length_exceeded"
    assert answer.error["details"]["limit_tokens"] == CONTEXT
    assert time.monotonic() - started_s < 5


@pytest.mark.parametrize("letter", ALPHABET, ids=repr)
def test_nor_is_it_registered(url: str, letter: str) -> None:
    # the second has few enough characters, and too many tokens
    for text in (letter * (HUGE // 2 // len(letter)), "one two. " * CONTEXT):
        answer = call(url, "POST", "/v1/segments", {"segments": [{"text": text}]})
        assert answer.status == 207
        assert answer.json["data"] == []
        assert answer.json["errors"][0]["code"] == "context_length_exceeded"


def test_a_small_request_does_not_wait_for_huge_ones(url: str) -> None:
    huge = [
        threading.Thread(target=call, args=(url, "POST", "/v1/tokenize", {"prompt": " " * HUGE}))
        for _ in range(2)
    ]
    for thread in huge:
        thread.start()
    started_s = time.monotonic()
    answer = call(url, "POST", "/v1/tokenize", {"prompt": "a small one"})
    assert answer.status == 200
    assert time.monotonic() - started_s < 2
    for thread in huge:
        thread.join(60)
