"""A stop string ends a reply at one token, however late the engine hears of it."""

from __future__ import annotations

import pytest

from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.parse import parse
from tests.prompt import tiny
from tests.service.fake_worker import FakeWorker
from tests.service.services import service

TEXT = "a town\nand another\nand more than that"
IDS = tiny.tokenizer().encode_text(TEXT)
TO_STOP = next(n for n in range(len(IDS)) if "\n" in tiny.tokenizer().decode(IDS[:n]))


class LateWorker(FakeWorker):
    """Hears of a stop string some tokens later, or never."""

    def __init__(self, num_late: int) -> None:
        super().__init__(IDS)
        self.num_late = num_late

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        if self.num_late == 0:
            super().finish(request_id, reply_index)
        self.num_late -= 1


late = pytest.mark.parametrize("num_late", [0, 1, 99])


@late
def test_tokens_behind_the_stop_are_in_no_count(num_late):
    body = {"messages": [{"role": "user", "content": "Q"}], "stop": "\n", "logprobs": True}
    whole = service(LateWorker(num_late)).chat(parse(ChatRequest, body))
    assert whole.choices[0].message.content == "a town"
    assert whole.usage.completion_tokens == TO_STOP
    assert len(whole.choices[0].logprobs.content) == TO_STOP
    chunks = list(service(LateWorker(num_late)).chat_chunks(parse(ChatRequest, body)))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == "a town"
    assert chunks[-1].usage == whole.usage
    told = [one.choices[0].logprobs.content for one in chunks if one.choices[0].logprobs]
    assert [one for part in told for one in part] == whole.choices[0].logprobs.content


@late
def test_the_same_of_plain_prompts(num_late):
    body = parse(CompletionRequest, {"prompt": "Q", "stop": "\n", "logprobs": 0})
    whole = service(LateWorker(num_late)).complete(body)
    assert (whole.choices[0].text, whole.usage.completion_tokens) == ("a town", TO_STOP)
    chunks = list(service(LateWorker(num_late)).complete_chunks(body))
    assert chunks[-1].usage == whole.usage
    told = [token for one in chunks for token in one.choices[0].logprobs.tokens]
    assert told == whole.choices[0].logprobs.tokens
    assert len(told) == TO_STOP


def test_min_tokens_holds_against_stop_strings():
    for min_tokens, text in ((0, "a town"), (TO_STOP, "a town\nand another"), (len(IDS), TEXT)):
        body = {"prompt": "Q", "stop": "\n", "min_tokens": min_tokens, "max_tokens": len(IDS)}
        reply = service(FakeWorker(IDS)).complete(parse(CompletionRequest, body))
        assert reply.choices[0].text == text
