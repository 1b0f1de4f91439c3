"""Stopping with grace: nothing new, what is in flight to its end, within a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from hypic_sdk.errors import CapacityError


@final
class Drain:
    """Counts what is in flight; once begun, lets nothing in."""

    def __init__(self) -> None:
        self._num_inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_hurried = asyncio.Event()
        self._endings: set[Callable[[], None]] = set()
        self.has_begun = False

    def begin(self) -> None:
        """From now on nothing new is let in."""
        self.has_begun = True

    def hurry(self) -> None:
        """Wait no longer for what is in flight."""
        self._is_hurried.set()

    async def wait_patiently(self, timeout_s: float) -> bool:
        """`wait_idle`, unless told to hurry meanwhile."""
        waits = [
            asyncio.ensure_future(self.wait_idle(timeout_s)),
            asyncio.ensure_future(self._is_hurried.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return self._is_empty.is_set()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be in flight inside of the block.

        Raises:
            CapacityError: the server is stopping.
        """
        if self.has_begun:
            raise CapacityError("the server is stopping")
        self._num_inside += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._is_empty.set()

    @contextmanager
    def ended_by(self, end: Callable[[], None]) -> Iterator[None]:
        """`end_all` inside of the block calls `end`, once."""
        self._endings.add(end)
        try:
            yield
        finally:
            self._endings.discard(end)

    def end_all(self) -> None:
        """Time is up: end what is in flight, each with an answer."""
        while self._endings:
            self._endings.pop()()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; false if that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True
