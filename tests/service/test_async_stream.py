"""The stream of an event loop: the same deltas and errors as the one that waits on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hypic_sdk.errors import CapacityError, HypicError, NumericsError, RequestCancelled, WorkerLost
from hypic_sdk.service import AsyncReplyStream, ReplyDelta, Service
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.parse import parse
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.service.services import service

SAID = "a town 🙂 there, and another one"


def prepared(over: Service, **fields: object):
    body = {"messages": [{"role": "user", "content": "Where?"}], "logprobs": True, **fields}
    return over.prepare_chat(parse(ChatRequest, body))


def worker_saying(text: str = SAID) -> PushingWorker:
    return PushingWorker(tiny.tokenizer().encode_text(text))


async def deltas_of(stream: AsyncReplyStream) -> list[ReplyDelta]:
    await asyncio.to_thread(stream.submit)
    return [delta async for delta in stream]


@pytest.mark.parametrize("fields", [{}, {"stop": " t"}, {"max_tokens": 3}, {"max_tokens": 0}])
def test_both_streams_say_the_same(fields):
    over = service(worker_saying())
    waited = list(over.stream(prepared(over, **fields)))

    async def run() -> list[ReplyDelta]:
        return await deltas_of(over.async_stream(prepared(over, **fields)))

    came = asyncio.run(run())
    text = "".join(delta.text for delta in waited)
    assert "".join(delta.text for delta in came) == text
    assert came[-1] == waited[-1]
    assert [one for delta in came for one in delta.logprobs] == [
        one for delta in waited for one in delta.logprobs
    ]


def run_with(worker: PushingWorker, act: Callable[[AsyncReplyStream], None]) -> HypicError | None:
    """What iterating raises after `act`, done at the first delta."""
    over = service(worker)

    async def run() -> None:
        stream = over.async_stream(prepared(over))
        stream.submit()
        async for _ in stream:
            act(stream)

    try:
        asyncio.run(run())
    except HypicError as error:
        return error
    finally:
        worker.join()
    return None


def test_an_error_of_the_engine_is_raised():
    worker = worker_saying()
    worker.failure = NumericsError("not finite")
    assert isinstance(run_with(worker, lambda stream: None), NumericsError)


def test_closing_cancels_once_and_ends_the_deltas():
    worker = worker_saying()
    worker.pause_s = 0.01

    def close(stream: AsyncReplyStream) -> None:
        stream.close()
        stream.close()
        with pytest.raises(RequestCancelled):
            stream.reply.ending()

    assert run_with(worker, close) is None
    # once by us; the events that the worker still pushes find the loop closed
    assert set(worker.cancelled) == {worker.last.request_id}


def test_a_reply_can_be_ended_from_outside():
    worker = worker_saying()
    worker.pause_s = 0.01
    error = run_with(worker, lambda stream: stream.fail(CapacityError("stopping")))
    assert isinstance(error, CapacityError)
    assert error.request_id == worker.last.request_id


def test_closed_before_its_turn_it_is_never_sent():
    worker = worker_saying()
    over = service(worker)

    async def run() -> None:
        stream = over.async_stream(prepared(over))
        stream.close()
        stream.submit()
        assert [delta async for delta in stream] == []

    asyncio.run(run())
    assert worker.messages == []
    assert worker.cancelled == []


def test_a_worker_that_takes_nothing():
    worker = worker_saying()
    worker.refuses = WorkerLost("closed")
    assert isinstance(run_with(worker, lambda stream: None), WorkerLost)


def test_a_loop_that_ends_first_leaves_no_request_behind():
    worker = worker_saying()
    worker.pause_s = 0.05
    over = service(worker)

    async def run() -> None:
        over.async_stream(prepared(over)).submit()

    asyncio.run(run())
    worker.join()
    assert worker.cancelled == [worker.last.request_id] * len(worker.cancelled)
    assert worker.cancelled
