"""News between gateways over Redis pub/sub: a key was revoked, limits or prices changed.

Pub/sub may lose messages while a connection is down, so every cache that listens keeps a short TTL of its own behind
it, and `connected` tells it when to keep a shorter one still.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from billing.db import Change

CHANNEL = "weir:changes"
_RETRY_S = 0.2
_POLL_S = 1.0
PUBLISH_TIMEOUT_S = 10.0  # a command's first connection on a busy host takes seconds; an unheard change, half a minute
log = logging.getLogger(__name__)
Listener = Callable[[str, str], None]


class ChangeBus:
    """Publishes changes and tells this process's listeners of everybody's, its own at once."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._listeners: list[Listener] = []
        self._task: asyncio.Task[None] | None = None
        self.connected = False
        self.subscribed = asyncio.Event()

    def listen(self, listener: Listener) -> None:
        """Call `listener(kind, id)` for every change; kind `all` after a gap in which messages may be lost."""
        self._listeners.append(listener)

    async def publish(self, changes: list[Change]) -> None:
        """Tell this process now and the others by Redis. Redis away: their short TTLs cover it; logged, not raised."""
        for kind, id in changes:
            self._dispatch(kind, id)
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await self._redis.publish(CHANNEL, msgspec.json.encode([list(change) for change in changes]))
        except (RedisError, OSError, TimeoutError) as exc:
            log.warning("changes not published, others learn of them by TTL: %s", type(exc).__name__)

    def start(self) -> None:
        """Begin listening in a task of the running loop."""
        self._task = asyncio.create_task(self._run(), name="billing-bus")

    async def stop(self) -> None:
        """End the task and wait for it."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self._subscribe()
            except (RedisError, OSError, TimeoutError) as exc:
                log.warning("listening for changes was interrupted: %s", type(exc).__name__)
            finally:
                self.connected = False
                self.subscribed.clear()
            await asyncio.sleep(_RETRY_S)

    async def _subscribe(self) -> None:
        async with self._redis.pubsub(ignore_subscribe_messages=False) as pubsub:
            await pubsub.subscribe(CHANNEL)
            while True:
                message = await pubsub.get_message(timeout=_POLL_S)
                if message is None:
                    async with asyncio.timeout(1.0):  # a half-open connection answers no ping
                        await pubsub.ping()
                    continue
                if message["type"] == "subscribe":
                    self.connected = True
                    self.subscribed.set()
                    self._dispatch("all", "")
                elif message["type"] == "message":
                    self._receive(message["data"])

    def _receive(self, data: bytes | str) -> None:
        try:
            changes = msgspec.json.decode(data, type=list[tuple[str, str]])
        except msgspec.MsgspecError:
            log.warning("a malformed message on %s was ignored", CHANNEL)
            return
        for kind, id in changes:
            self._dispatch(kind, id)

    def _dispatch(self, kind: str, id: str) -> None:
        for listener in self._listeners:
            listener(kind, id)
