"""A request asked of whichever client there is: whole, or chunk by chunk, on an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from hypic_sdk.integrations.in_thread import chunks_in_thread, whole_in_thread

Endpoint = Callable[[Any], Any]
"""From a client to the calls of one endpoint."""


class HasClients(Protocol):
    """One client that waits and perhaps one for event loops."""

    def calls(self) -> Any:
        """The client that waits."""
        ...

    def async_calls(self) -> Any | None:
        """The client on an event loop; none: there is only one that waits."""
        ...


def chats(calls: Any) -> Any:
    """`chat.completions` of a client."""
    return calls.chat.completions


def plain_prompts(calls: Any) -> Any:
    """`completions` of a client."""
    return calls.completions


async def whole(clients: HasClients, endpoint: Endpoint, request: Mapping[str, Any]) -> Any:
    """The whole reply; cancelling the task cancels the request."""
    calls = clients.async_calls()
    if calls is not None:
        return await endpoint(calls).create(**request)
    return await whole_in_thread(_opening(clients, endpoint, request))


async def chunks(
    clients: HasClients, endpoint: Endpoint, request: Mapping[str, Any]
) -> AsyncGenerator[Any, None]:
    """The chunks of a reply; closing the generator cancels the request."""
    calls = clients.async_calls()
    if calls is not None:
        async with endpoint(calls).stream(**request) as stream:
            async for chunk in stream:
                yield chunk
        return
    async with aclosing(chunks_in_thread(_opening(clients, endpoint, request))) as held:
        async for chunk in held:
            yield chunk


def _opening(
    clients: HasClients, endpoint: Endpoint, request: Mapping[str, Any]
) -> Callable[[], Any]:
    """Opens the stream when it is called, so on the thread that reads it."""
    return partial(endpoint(clients.calls()).create, stream=True, **request)
