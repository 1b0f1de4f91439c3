"""Bytes to a server and back: sessions, timeouts, retries, streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from dataclasses import replace
from typing import final
from weakref import WeakKeyDictionary

import aiohttp

from hypic_sdk.client.events import EventParser, ServerEvent
from hypic_sdk.client.protocol import Call, error_of
from hypic_sdk.client.retries import Retries
from hypic_sdk.errors import ConnectionFailed, HypicError, RequestTimeout
from hypic_sdk.version import __version__
from hypic_sdk.wire.shorthand import checked_timeout

_CONNECT_S = 10.0


@final
class Connection:
    """One server.  Usable on several event loops, one after the other or at once."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        timeout_s: float,
        retries: Retries,
        headers: Mapping[str, str],
    ) -> None:
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self._timeout_s = checked_timeout(timeout_s)
        self._retries = retries
        self._headers = {"User-Agent": f"hypic-sdk/{__version__}", **headers}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._sessions: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[None, None]]
        ] = WeakKeyDictionary()

    def with_options(
        self, *, timeout_s: float | None = None, max_retries: int | None = None
    ) -> Connection:
        """The same server over the same sessions, with other limits; what is left out stays."""
        other = copy(self)
        if timeout_s is not None:
            other._timeout_s = checked_timeout(timeout_s)
        if max_retries is not None:
            other._retries = replace(self._retries, max_retries=max_retries)
        return other

    def _time(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else checked_timeout(timeout_s)

    async def send(self, call: Call, *, timeout_s: float | None = None) -> bytes:
        """The body of the reply.

        Raises:
            HypicError: what the server raised, by its class.
            ConnectionFailed, RequestTimeout: no reply came.
        """
        timeout = aiohttp.ClientTimeout(total=self._time(timeout_s), connect=_CONNECT_S)
        num_tries = 0
        while True:
            num_tries += 1
            try:
                response = await self._open(call, timeout)
                with _typed_errors(call):
                    async with response:
                        return await response.read()
            except HypicError as error:
                await self._wait_or_raise(error, call, num_tries)

    @asynccontextmanager
    async def events(
        self, call: Call, *, timeout_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[ServerEvent]]:
        """The events of a stream.  Leaving the block closes it, which the server takes as a cancel.

        `timeout_s` is for the time between two events.  Only the opening is tried again.
        """
        response = await self._open_patiently(call, self._time(timeout_s))
        events = _events(call, response)
        try:
            yield events
        finally:
            await events.aclose()
            # not released: a connection with half a stream in it can not be used again
            response.close()

    async def _open_patiently(self, call: Call, silence_s: float) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S, sock_read=silence_s)
        num_tries = 0
        while True:
            num_tries += 1
            try:
                return await self._open(call, timeout)
            except HypicError as error:
                await self._wait_or_raise(error, call, num_tries)

    async def close(self) -> None:
        """Close the session of the running loop; another call opens a new one."""
        found = self._sessions.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found[1].aclose()

    async def _wait_or_raise(self, error: HypicError, call: Call, num_tries: int) -> None:
        wait_s = self._retries.wait_s(
            error,
            num_tries=num_tries,
            repeatable=call.repeatable,
            retry_after=error.details.get("retry_after"),
        )
        if wait_s is None:
            raise error
        await asyncio.sleep(wait_s)

    async def _open(self, call: Call, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """The head of a reply that is no error; its body is still to be read."""
        session = await self._session()
        with _typed_errors(call):
            response = await session.request(
                call.method,
                self._base_url + call.path,
                data=call.body,
                params=call.query,
                headers={"Content-Type": "application/json"} if call.body is not None else {},
                timeout=timeout,
            )
            if response.status < 400:
                return response
            async with response:
                body = await response.read()
        request_id = response.headers.get("X-Request-Id")
        error = error_of(response.status, body, request_id=request_id)
        if "Retry-After" in response.headers:
            error.details["retry_after"] = response.headers["Retry-After"]
        raise error

    async def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        found = self._sessions.get(loop)
        if found is None or found[0].closed:
            session = aiohttp.ClientSession(headers=self._headers)
            keeper = _closed_with_its_loop(session)
            await anext(keeper)
            self._sessions[loop] = found = (session, keeper)
        return found[0]


async def _closed_with_its_loop(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Closes a session when its loop ends: `asyncio.run` closes generators that are still open.

    Without it, a program that calls `asyncio.run` again and again would leave sockets behind.
    """
    try:
        yield
    finally:
        await session.close()


async def _events(
    call: Call, response: aiohttp.ClientResponse
) -> AsyncGenerator[ServerEvent, None]:
    parser = EventParser()
    with _typed_errors(call):
        async for received in response.content.iter_any():
            for event in parser.feed(received):
                yield event


@contextmanager
def _typed_errors(call: Call) -> Iterator[None]:
    """What goes wrong between here and the server, in this package's errors.

    `details["sent"]` is false where the server can not have seen the call.
    """
    what = f"{call.method} {call.path}"
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise RequestTimeout(f"{what}: no connection in time", sent=False) from error
    except aiohttp.ClientConnectorError as error:
        raise ConnectionFailed(f"{what}: no connection: {error}", sent=False) from error
    except TimeoutError as error:
        raise RequestTimeout(f"{what}: no reply in time", sent=True) from error
    except (aiohttp.ClientError, ConnectionError) as error:
        said = str(error) or type(error).__name__
        raise ConnectionFailed(f"{what}: the connection broke: {said}", sent=True) from error
