"""SIGTERM's way out: new requests are refused, what runs may end in time, and what then still runs is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gateway.errors import Unavailable

STOPPING = "stopping"  # set in a request's state when it is cut off because the server stops
LAST_WORDS_S = 5.0  # for sending the error to those that are cut off, and for booking what they got


def server_stops() -> Unavailable:
    """What a request gets that comes, or still runs, when the server stops. Another one may answer at once."""
    return Unavailable("The server is stopping.", code="server_stopping", headers={"connection": "close"})


class InFlight:
    """The requests that are being answered, each with its task and its state."""

    def __init__(self) -> None:
        self.refusing = False
        self._states: dict[asyncio.Task[Any], dict[str, Any]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def one(self, state: dict[str, Any]) -> Iterator[None]:
        """Around a request, in its task."""
        task = asyncio.current_task()
        assert task is not None
        self._states[task] = state
        self._idle.clear()
        try:
            yield
        finally:
            del self._states[task]
            if not self._states:
                self._idle.set()

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests and returns once none runs; those that run longer are cut off, with a word."""
        self.refusing = True
        if not await self._idle_within(timeout_s):
            for task, state in self._states.items():
                state[STOPPING] = True
                task.cancel()
            await self._idle_within(LAST_WORDS_S)

    async def _idle_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
