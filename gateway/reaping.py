"""Removing what is dead from the answer cache, time and again: Redis expires entries, but not their rows."""

from __future__ import annotations

import asyncio
import logging

from cache.invalidation import Invalidator
from cache.store import STORE_TROUBLE

log = logging.getLogger(__name__)


class Reaper:
    """Runs beside the requests of every gateway; that several do so on one Redis is harmless."""

    def __init__(self, invalidator: Invalidator, *, embedder_fingerprint: str | None, interval_s: float) -> None:
        """Args: embedder_fingerprint None reaps expired entries only, not those of other embedders."""
        self._invalidator = invalidator
        self._fingerprint = embedder_fingerprint
        self._interval_s = interval_s

    async def work(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.reap()

    async def reap(self) -> None:
        """Once. Trouble with Redis is logged: the next round finds the same entries."""
        try:
            removed = await self._invalidator.reap(embedder_fingerprint=self._fingerprint)
        except STORE_TROUBLE as exc:
            log.warning("the answer cache was not reaped: %s", type(exc).__name__)
            return
        if removed.entries:
            log.info("reaped %d cached answers, %d bytes", removed.entries, removed.size_bytes)
