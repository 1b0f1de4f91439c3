"""A look at the store every few seconds, kept for a while, so that a page can draw its past."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import final

from hypic_sdk.errors import HypicError
from hypic_sdk.server.site import Desk, Site
from hypic_sdk.wire.cache_stats import CacheStats
from hypic_sdk.wire.recent import CacheSample

logger = logging.getLogger(__name__)


@final
class Sampler:
    """A task beside the handlers; a look that fails leaves a hole."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            try:
                await self._look()
            except HypicError as error:
                logger.info("no sample is taken code=%s", error.code)
            except Exception:
                logger.exception("sampling failed")
            await asyncio.sleep(self._site.settings.sample_s)

    async def _look(self) -> None:
        if not self._site.worker.is_ready():
            return
        usage = await self._site.waiting.run(self._site.worker.usage)
        books, at = CacheStats.model_validate(usage), time.time()
        self._site.shadow = books.shadow
        for task in self._site.desks.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                desk = task.result()
                desk.history.append(sample(books, desk, at))


def sample(books: CacheStats, desk: Desk, at: float) -> CacheSample:
    """The books of a moment, and a tenant's requests until then."""
    totals = desk.recent.totals
    return CacheSample(
        at=at,
        state_rows=books.state_rows,
        transition_rows=books.transition_rows,
        kv_slots=books.kv_slots,
        num_segments=books.num_segments,
        num_chains=books.num_chains,
        num_evicted=books.num_evicted,
        num_requests=totals.num_requests,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
    )
