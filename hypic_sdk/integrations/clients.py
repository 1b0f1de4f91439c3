"""The two clients of an adapter, one that waits and one for event loops; copies share them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, final

from hypic_sdk.client import AsyncHypic, Hypic


@final
class Clients:
    """Those that were given; without any, own ones over a server, each made at its first call.

    Beside a given `client` there is no asynchronous one unless it is given too.
    """

    def __init__(
        self,
        client: Any = None,
        async_client: Any = None,
        *,
        base_url: str | None,
        api_key: str | None,
        timeout_s: float,
        max_retries: int,
    ) -> None:
        """
        Args:
            client: a `Hypic`, a `LocalHypic` or whatever has their calls.
            async_client: an `AsyncHypic` or whatever has its calls.
            base_url: of own clients, as the following; see `AsyncHypic`.
        """
        self._client = client
        self._async_client = async_client
        self._base_url = base_url
        self._connection: dict[str, Any] = {
            "api_key": api_key,
            "timeout_s": timeout_s,
            "max_retries": max_retries,
        }
        self._own: Hypic | None = None
        self._own_async: AsyncHypic | None = None
        self._lock = threading.Lock()

    def calls(self) -> Any:
        """The client that waits."""
        if self._client is not None:
            return self._client
        with self._lock:
            if self._own is None:
                self._own = Hypic(self._base_url, **self._connection)
            return self._own

    def async_calls(self) -> Any | None:
        """The client on an event loop; none: there is only one that waits."""
        if self._async_client is not None or self._client is not None:
            return self._async_client
        with self._lock:
            if self._own_async is None:
                self._own_async = AsyncHypic(self._base_url, **self._connection)
            return self._own_async

    def close(self) -> None:
        """Close the waiting client that was made here; one that was given is the giver's."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own.close()

    async def aclose(self) -> None:
        """Close both clients that were made here."""
        with self._lock:
            own, self._own_async = self._own_async, None
        if own is not None:
            await own.close()
        self.close()


@final
class ClientPool:
    """The clients of a model and of its copies; a copy that leads elsewhere has its own.

    Frameworks copy a model for a call, with another temperature or another key: a connection is
    made once for each address and key and not once a call.  Over `max_held` the clients that were
    asked for longest ago are let go, open as they are: somebody may be using them.
    """

    def __init__(self, *, max_held: int = 32) -> None:
        self._max_held = max_held
        self._held: OrderedDict[Hashable, Clients] = OrderedDict()
        self._lock = threading.Lock()

    def clients(self, client: Any = None, async_client: Any = None, **connection: Any) -> Clients:
        """Those of these arguments of `Clients`; made if they are not there."""
        # objects that are given are held below, so nothing else comes to have their ids
        key = (id(client), id(async_client), *connection.items())
        with self._lock:
            if key not in self._held:
                self._held[key] = Clients(client, async_client, **connection)
            self._held.move_to_end(key)
            if len(self._held) > self._max_held:
                self._held.popitem(last=False)
            return self._held[key]

    def close(self) -> None:
        """Close every waiting client that was made here; the next call makes another."""
        for one in self._all():
            one.close()

    async def aclose(self) -> None:
        """Close every client that was made here."""
        for one in self._all():
            await one.aclose()

    def _all(self) -> list[Clients]:
        with self._lock:
            return list(self._held.values())

    def __deepcopy__(self, memo: dict[int, Any]) -> ClientPool:
        """Connections are not copied."""
        return self

    def __reduce__(self) -> Any:
        """Another process connects anew."""
        return ClientPool, ()
