"""Calls and replies as values."""

from __future__ import annotations

import json

import pytest

from hypic_sdk.client import protocol
from hypic_sdk.client.whole import WholeChat, WholeCompletion
from hypic_sdk.errors import (
    BodyTooLarge,
    CapacityError,
    ConnectionFailed,
    HypicError,
    NotAuthenticated,
    QueueFull,
    RequestCancelled,
    RequestError,
    UnknownModel,
    WorkerError,
    walk,
)
from hypic_sdk.server.envelope import dumped, envelope
from hypic_sdk.wire.models import ModelList

ASK = [{"role": "user", "content": "Where?"}]


def test_a_chat_is_sent_as_it_was_written():
    """What the caller left out is the server's to decide."""
    call = protocol.chat(ASK, {"documents": ["A town"], "max_tokens": 3}, stream=True)
    assert json.loads(call.body) == {
        "messages": ASK,
        "documents": [{"text": "A town"}],
        "max_tokens": 3,
        "stream": True,
    }
    assert not call.repeatable


def test_what_is_wrong_is_told_before_anything_is_sent():
    with pytest.raises(RequestError, match="max_tokens"):
        protocol.chat(ASK, {"max_tokens": -1})
    with pytest.raises(TypeError, match="max_token"):
        protocol.chat(ASK, {"max_token": 1})
    with pytest.raises(RequestError):
        protocol.segment_path("../secret")


@pytest.mark.parametrize("error_class", list(walk()), ids=lambda one: one.__name__)
def test_an_error_comes_back_as_the_class_that_was_raised(error_class):
    raised = error_class("what happened", num_bytes=9)
    body = dumped(envelope(raised, request_id="req_1")).encode()
    error = protocol.error_of(raised.http_status, body, request_id="req_1")
    assert type(error) is error_class
    assert (error.message, error.details, error.request_id) == (
        "what happened", {"num_bytes": 9}, "req_1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (400, RequestError),
        (401, NotAuthenticated),
        (413, BodyTooLarge),
        (429, QueueFull),
        (500, HypicError),
        (502, WorkerError),
        (503, CapacityError),
        (504, HypicError),
    ],
)
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"error": "x"}', b'{"error": {"message": "m"}}']
)
def test_a_reply_of_something_between_is_an_error_by_its_status(status, error_class, body):
    assert type(protocol.error_of(status, body)) is error_class


def test_a_reply_that_is_none_of_ours():
    with pytest.raises(ConnectionFailed, match="hypic server"):
        protocol.parsed(ModelList, b"<html>")
    assert protocol.parsed(ModelList, b'{"data": [], "more": 1}').data == []


def test_a_code_of_a_newer_server_keeps_its_words():
    body = b'{"error": {"code": "from_the_future", "message": "later", "details": {}}}'
    error = protocol.error_of(404, body)
    assert type(error) is RequestError
    assert error.message == "later"
    assert not isinstance(error, UnknownModel)


@pytest.mark.parametrize("whole", [WholeChat(), WholeCompletion()], ids=["chat", "completion"])
def test_a_stream_without_its_end_is_no_reply(whole):
    with pytest.raises(RequestCancelled):
        whole.completion()
