"""An application on a socket, from its first call to its last."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from hypic_sdk.errors import ConfigError
from hypic_sdk.server.site import SITE

logger = logging.getLogger(__name__)

_LAST_WAIT_S = 2.0  # for handlers that were told to end


@asynccontextmanager
async def serving(
    app: web.Application, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Answer calls inside of the block; gives the base URL.

    Leaving it, nothing new is let in, and what is in flight may end within `settings.drain_s`; what
    is left then, or once `Drain.hurry` is called, is answered with an error.

    Args:
        port: 0 is one that is free.
    Raises:
        ConfigError: no keys, and an address that other machines reach; a port that is in use.
    """
    site = app[SITE]
    if not site.tenants.has_keys and not _is_loopback(host):
        raise ConfigError(f"without a keys file only this machine may call, not {host}")
    # a caller that goes away ends its handler, which cancels the request in the engine
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=_LAST_WAIT_S,
        auto_decompress=False,  # `bodies` does it: a body that is not what it says has an answer
    )
    await runner.setup()
    try:
        listener = web.TCPSite(runner, host, port)
        try:
            await listener.start()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"can not listen on {host} port {port}: {reason}") from error
        address, bound_port = runner.addresses[0][:2]
        name = f"[{address}]" if ":" in address else address
        logger.info("listening host=%s port=%d keys=%s", address, bound_port, site.tenants.has_keys)
        yield f"http://{name}:{bound_port}"
    finally:
        site.drain.begin()
        if not await site.drain.wait_patiently(site.settings.drain_s):
            logger.warning("ending what is in flight")
            site.drain.end_all()
            await site.drain.wait_idle(_LAST_WAIT_S)
        await runner.cleanup()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
