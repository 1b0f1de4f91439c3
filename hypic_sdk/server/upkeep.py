"""What a server does by itself: tell a new engine what is wished, remove what is over."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import final

from hypic_sdk.errors import HypicError
from hypic_sdk.server.site import Desk, Site

logger = logging.getLogger(__name__)


@final
class Upkeep:
    """A task beside the handlers; what fails is logged and tried again."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._swept_s = -math.inf  # at once: texts whose time ended while no server ran

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            is_time_to_sweep = time.monotonic() - self._swept_s >= self._site.settings.sweep_s
            if is_time_to_sweep:
                self._swept_s = time.monotonic()
            for tenant in self._site.tenants.all:
                try:
                    desk = await self._site.desk(tenant)
                    await self._restore(desk)
                    if is_time_to_sweep:
                        await self._site.waiting.run(desk.service.segments.keeper.sweep)
                except HypicError as error:
                    logger.info("upkeep is put off tenant=%r code=%s", tenant.name, error.code)
                except Exception:
                    logger.exception("upkeep failed tenant=%r", tenant.name)
            await asyncio.sleep(self._site.settings.upkeep_s)

    async def _restore(self, desk: Desk) -> None:
        """Tell the store behind the worker, once, if it is another than before."""
        worker = self._site.worker
        generation = worker.generation()
        if desk.generation != generation and worker.is_ready():
            await self._site.waiting.run(desk.service.segments.keeper.restore)
            desk.generation = generation
