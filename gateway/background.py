"""Work that outlives the request it belongs to, and is waited for when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class Background:
    """Tasks with an owner: none is lost to the garbage collector, and a failure is logged, not swallowed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Runs `work` on its own."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def finish(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """Awaits `work`, which goes on to its end even when the caller is cancelled meanwhile."""
        task: asyncio.Task[T] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def finish_first(
        self, work: Callable[[asyncio.Future[None]], Coroutine[Any, Any, None]], *, name: str
    ) -> None:
        """Runs `work` in one task and awaits its first part: until it sets the future that it is given. The rest goes
        on by itself; all of it does when the caller is cancelled. Raises: what the first part raises."""
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(work(first), name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._first_ended(ended, first))
        await asyncio.shield(first)

    def _first_ended(self, task: asyncio.Task[None], first: asyncio.Future[None]) -> None:
        if first.done():
            self._done(task)
            return
        self._tasks.discard(task)
        if task.cancelled():
            first.cancel()
        else:
            first.set_exception(task.exception() or RuntimeError(f"{task.get_name()} ended without its first part"))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()):
            log.error("background task %s failed", task.get_name(), exc_info=failure)

    async def drain(self, timeout_s: float) -> int:
        """Waits for all tasks, at most `timeout_s` seconds; returns how many were still running."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        return len(self._tasks)


async def ended(task: asyncio.Task[None]) -> None:
    """Cancels a task that runs as long as the gateway does."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
