"""The two clients of an adapter, and streams read on threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from hypic_sdk.client import AsyncHypic, Hypic
from hypic_sdk.errors import ConnectionFailed
from hypic_sdk.integrations.clients import ClientPool, Clients
from hypic_sdk.integrations.in_thread import chunks_in_thread, whole_in_thread
from tests.integrations.recording import AsyncRecording, Recording

NOWHERE = {"base_url": "http://127.0.0.1:9", "api_key": None, "timeout_s": 5.0, "max_retries": 0}


class TestClients:
    def test_those_that_are_given(self):
        waiting, on_a_loop = Recording(), AsyncRecording()
        assert Clients(waiting, **NOWHERE).calls() is waiting
        assert Clients(waiting, **NOWHERE).async_calls() is None
        both = Clients(waiting, on_a_loop, **NOWHERE)
        assert (both.calls(), both.async_calls()) == (waiting, on_a_loop)

    def test_own_ones_are_made_once_whoever_asks_first(self):
        clients = Clients(**NOWHERE)
        made: list[Any] = []
        gate = threading.Barrier(8)

        def ask() -> None:
            gate.wait()
            made.append((clients.calls(), clients.async_calls()))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        assert len(made) == 8
        assert len({(id(one), id(other)) for one, other in made}) == 1
        [(one, other), *_] = made
        assert isinstance(one, Hypic)
        assert isinstance(other, AsyncHypic)
        asyncio.run(clients.aclose())
        with pytest.raises(ConnectionFailed, match="closed"):
            one.is_ready()
        # another call makes another
        assert clients.calls() is not one
        clients.close()

    def test_closing_leaves_those_that_were_given(self):
        class Given:
            def close(self) -> None:
                raise AssertionError("it is the giver's")

        clients = Clients(Given(), Given(), **NOWHERE)
        clients.close()
        asyncio.run(clients.aclose())


class TestPool:
    def test_one_for_each_address_and_key(self):
        pool, given = ClientPool(), Recording()
        here = pool.clients(**NOWHERE)
        assert pool.clients(**NOWHERE) is here
        others = [
            pool.clients(**{**NOWHERE, name: value})
            for name, value in (
                ("base_url", "http://127.0.0.1:10"),
                ("api_key", "another"),
                ("timeout_s", 6.0),
                ("max_retries", 1),
            )
        ]
        others += [pool.clients(given, **NOWHERE), pool.clients(Recording(), **NOWHERE)]
        assert len({id(one) for one in [here, *others]}) == 7
        assert pool.clients(given, **NOWHERE).calls() is given

    def test_closing_closes_all_that_were_made(self):
        pool = ClientPool()
        made = [pool.clients(**{**NOWHERE, "api_key": key}).calls() for key in ("one", "two")]
        pool.close()
        for one in made:
            with pytest.raises(ConnectionFailed, match="closed"):
                one.is_ready()
        again = pool.clients(**NOWHERE).async_calls()
        asyncio.run(pool.aclose())
        assert pool.clients(**NOWHERE).async_calls() is not again

    def test_those_asked_for_longest_ago_are_let_go_open(self):
        pool = ClientPool(max_held=2)
        first = pool.clients(**NOWHERE)
        calls = first.calls()
        pool.clients(**{**NOWHERE, "api_key": "two"})
        assert pool.clients(**NOWHERE) is first
        pool.clients(**{**NOWHERE, "api_key": "three"})
        assert pool.clients(**NOWHERE) is first  # the second went
        pool.clients(**{**NOWHERE, "api_key": "four"})
        pool.clients(**{**NOWHERE, "api_key": "five"})
        assert pool.clients(**NOWHERE) is not first
        with pytest.raises(ConnectionFailed, match="no connection"):
            calls.is_ready()  # nobody is there; but it was not closed
        first.close()


class Slow:
    """A stream whose chunks come when `step` is set; a close ends the wait, as a server does."""

    def __init__(self) -> None:
        self.step = threading.Event()
        self.waits = threading.Event()
        self.is_closed = False

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Slow:
        return self

    def __next__(self) -> str:
        self.waits.set()
        assert self.step.wait(timeout=20)
        if self.is_closed:
            raise StopIteration
        return "chunk"

    def get_final_completion(self) -> str:
        return next(self)

    def close(self) -> None:
        self.is_closed = True
        self.step.set()


async def given_up(slow: Slow, waiting: Callable[[], Any]) -> None:
    task = asyncio.create_task(waiting())
    assert await asyncio.to_thread(slow.waits.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class TestInThread:
    def test_a_whole_reply(self):
        slow = Slow()
        slow.step.set()
        assert asyncio.run(whole_in_thread(lambda: slow)) == "chunk"
        assert slow.is_closed

    def test_giving_up_closes_what_the_thread_reads(self):
        slow = Slow()
        asyncio.run(given_up(slow, lambda: whole_in_thread(lambda: slow)))
        assert slow.is_closed

    @pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "in chunks"])
    def test_giving_up_before_the_stream_is_there(self, is_whole: bool):
        slow, may_open = Slow(), threading.Event()

        def opening() -> Slow:
            slow.waits.set()
            assert may_open.wait(timeout=20)
            return slow

        async def read() -> None:
            if is_whole:
                await whole_in_thread(opening)
            async with aclosing(chunks_in_thread(opening)) as chunks:
                await anext(chunks)

        async def give_up() -> None:
            await given_up(slow, read)
            assert not slow.is_closed
            may_open.set()

        # the loop waits for its threads
        asyncio.run(give_up())
        assert slow.is_closed

    def test_chunks_until_the_reader_leaves(self):
        slow = Slow()
        slow.step.set()

        async def read() -> list[str]:
            got = []
            async with aclosing(chunks_in_thread(lambda: slow)) as chunks:
                async for chunk in chunks:
                    got.append(chunk)
                    if len(got) == 3:
                        break
            return got

        assert asyncio.run(read()) == ["chunk"] * 3
        assert slow.is_closed

    def test_giving_up_between_chunks(self):
        slow = Slow()

        async def read() -> None:
            async with aclosing(chunks_in_thread(lambda: slow)) as chunks:
                async for _ in chunks:
                    pass

        asyncio.run(given_up(slow, read))
        assert slow.is_closed

    def test_an_error_of_the_client_is_raised_here(self):
        def opening() -> Any:
            raise ConnectionFailed("nobody there")

        with pytest.raises(ConnectionFailed):
            asyncio.run(whole_in_thread(opening))
