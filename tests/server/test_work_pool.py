"""Threads beside the event loop: bounded, and cancelled before their turn."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hypic_sdk.errors import QueueFull
from hypic_sdk.server.drain import Drain
from hypic_sdk.server.sse import Patient
from hypic_sdk.server.work_pool import WorkPool


def test_one_too_many_is_refused_and_room_comes_back():
    pool = WorkPool("test", num_threads=1, max_waiting=1)
    gate = threading.Event()

    async def run() -> None:
        held = [asyncio.create_task(pool.run(gate.wait, 10)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await pool.run(int)
        gate.set()
        assert await asyncio.gather(*held) == [True, True]
        assert await pool.run(int, "7") == 7

    asyncio.run(run())
    pool.close()


def test_what_is_cancelled_before_its_turn_is_not_called():
    pool = WorkPool("test", num_threads=1, max_waiting=5)
    gate, called = threading.Event(), []

    async def run() -> None:
        first = asyncio.create_task(pool.run(gate.wait, 10))
        second = asyncio.create_task(pool.run(called.append, 1))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        gate.set()
        await first

    asyncio.run(run())
    pool.close()
    assert called == []


def test_errors_come_through():
    pool = WorkPool("test", num_threads=1, max_waiting=1)
    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(pool.run(int, "x"))
    pool.close()


def test_silence_does_not_disturb_what_is_waited_for():
    async def slow():
        for number in range(3):
            await asyncio.sleep(0.05)
            yield number

    async def run() -> list[int | None]:
        async with Patient(slow(), 0.02) as patient:
            return [item async for item in patient]

    items = asyncio.run(run())
    assert [item for item in items if item is not None] == [0, 1, 2]
    assert items.count(None) >= 3


def test_a_drain_waits_for_what_is_inside():
    async def run() -> None:
        drain, ended = Drain(), []
        assert await drain.wait_idle(0.01)
        with drain.entered(), drain.ended_by(lambda: ended.append(1)):
            drain.begin()
            assert not await drain.wait_idle(0.01)
            drain.end_all()
            drain.end_all()
        assert ended == [1]
        assert await drain.wait_idle(0.01)

    asyncio.run(run())
