"""A bound on many waits by one timer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class WaitTimer:
    """One timer for all waits of an answer: `asyncio.timeout` around each token's costs more than the token."""

    def __init__(self, at: float) -> None:
        """Args: at, seconds of `time.monotonic`."""
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Task[Any] | None = None
        self._expired = False
        self._handle = self._loop.call_later(at - time.monotonic(), self._expire)

    def _expire(self) -> None:
        self._expired = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def bounds(self, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled when the time is up. Raises: TimeoutError."""
        if self._expired:  # between two waits: what is there already is not lost
            async with asyncio.timeout(0):
                return await work
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._waiting = task
        try:
            result = await work
        except asyncio.CancelledError:
            if self._takes_back(task) <= before and self._expired:
                raise TimeoutError from None
            raise
        except BaseException:
            self._takes_back(task)
            raise
        self._takes_back(task)
        return result

    def _takes_back(self, task: asyncio.Task[Any]) -> int:
        """Its own cancellation, whatever `work` has made of it; how many of others' are left."""
        self._waiting = None
        return task.uncancel() if self._expired else task.cancelling()

    def move(self, at: float) -> None:
        """Another end, unless the old one has passed."""
        self._handle.cancel()
        self._handle = self._loop.call_later(at - time.monotonic(), self._expire)

    def cancel(self) -> None:
        """Nothing is bounded any more."""
        self._handle.cancel()
