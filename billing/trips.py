"""The trips to Redis of all requests over one connection: what comes up meanwhile goes out together, replies come back
in order.

A trip through redis-py's pool costs more in the client than in Redis: a connection taken and given back, a retry
object, timers, a stream wait of its own. Here a trip is a future, and the commands of one turn of the loop are one
write. Connecting (URL, TLS, authentication, database, protocol) stays redis-py's.

Nothing is sent twice: a trip whose connection broke fails, since its scripts may have run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from billing.deadline import REDIS_GIVEN_UP, SharedDeadlines, Watched

SLICE_S = 0.01
CONNECT_TIMEOUT_S = 5.0
STALLED_S = 5.0  # a connection that has not answered for this long is given up when the next trip comes
Command = tuple[Any, ...]  # its words: text, bytes, whole numbers
log = logging.getLogger(__name__)


class _Trip:
    __slots__ = ("done", "num_replies", "packed", "replies", "written_at")

    def __init__(self, commands: Sequence[Command], done: asyncio.Future[None]) -> None:
        self.num_replies = len(commands)
        # redis-py's own packing takes 0.1 ms for a script's fifty arguments.
        self.packed = b"".join(map(hiredis.pack_command, commands))
        self.done = done
        self.replies: list[Any] = []
        self.written_at = 0.0

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Trips:
    """One a process and Redis. The connection is made by the first trip, and again by the first after it broke."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._queue: list[_Trip] = []
        self._written: deque[_Trip] = deque()  # in the order of their replies
        self._wake = asyncio.Event()
        self._deadlines = SharedDeadlines(SLICE_S, REDIS_GIVEN_UP)
        self._broken: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    async def execute(self, commands: Sequence[Command], *, deadline_s: float) -> tuple[list[Any], float]:
        """The replies, errors of single commands among them, and the seconds counted of the deadline.

        Replies are as Redis sends them: bytes, numbers, lists.
        Raises: TimeoutError; redis.exceptions.ConnectionError; TypeError for an argument that Redis has no form for.
        """
        if not commands:
            return [], 0.0
        if deadline_s <= 0:
            raise TimeoutError
        trip = _Trip(commands, asyncio.get_running_loop().create_future())
        watched = self._begin(trip, deadline_s)
        await trip.done
        return trip.replies, watched.used_s

    def _begin(self, trip: _Trip, deadline_s: float) -> Watched:
        self._queue.append(trip)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name="redis-trips")
        return self._deadlines.watch(trip.done, deadline_s)

    async def close(self) -> None:
        """Ends the connection; trips under way fail."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._fail(RedisConnectionError("the client is closed"), unsent=True)
        self._deadlines.close()

    # --- the connection ------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Connects when there is a trip to make, and stays connected until the connection breaks."""
        while True:
            await self._wake.wait()
            self._broken = None
            connection = self._new_connection()
            reader: asyncio.Task[None] | None = None
            transport: asyncio.WriteTransport | None = None
            failure: Exception = RedisConnectionError("the client is closed")
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await connection.connect()
                transport = connection._writer.transport if connection._writer is not None else None
                reader = asyncio.create_task(self._read(connection), name="redis-replies")
                await self._write(connection)
            except Exception as exc:  # noqa: BLE001  uvloop raises RuntimeError where a transport has just closed
                failure = _as_redis_error(exc)
            finally:
                if reader is not None:
                    reader.cancel()
                    await asyncio.wait([reader])
                # Whatever ended it: a trip left behind would take the replies of the next connection's first trips.
                self._fail(failure, unsent=reader is None)
                with contextlib.suppress(RedisError, OSError):
                    await connection.disconnect(nowait=True)
                if transport is not None:
                    transport.abort()  # what a frozen server has not read yet is not for it to do when it wakes up

    def _new_connection(self) -> AbstractConnection:
        """Without redis-py's own timeouts: a wait for replies between two requests is no fault. With a timeout its
        writes also go through `asyncio.wait_for`, which in Python 3.11 may lose a cancellation."""
        pool = self._redis.connection_pool
        return pool.connection_class(**{**pool.connection_kwargs, "socket_timeout": None})

    async def _write(self, connection: AbstractConnection) -> None:
        """Raises: what broke the connection."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._broken is not None:
                raise self._broken
            trips, self._queue = self._queue, []
            trips = [trip for trip in trips if not trip.done.done()]
            if not trips:
                continue
            now = time.monotonic()
            if self._written and now - self._written[0].written_at > STALLED_S:
                self._queue = trips
                raise RedisConnectionError(f"no reply from Redis in {STALLED_S} s")
            for trip in trips:
                trip.written_at = now
            self._written.extend(trips)
            async with asyncio.timeout(STALLED_S):  # a server that reads nothing any more, once all buffers are full
                await connection.send_packed_command(b"".join(trip.packed for trip in trips), check_health=False)

    async def _read(self, connection: AbstractConnection) -> None:
        try:
            while True:
                try:
                    reply = await connection.read_response(timeout=math.inf)
                except ResponseError as exc:
                    reply = exc
                trip = self._written[0]
                trip.replies.append(reply)
                if len(trip.replies) == trip.num_replies:
                    self._written.popleft()
                    if not trip.done.done():
                        trip.done.set_result(None)
        except Exception as exc:  # noqa: BLE001  whatever it was, nobody reads the replies any more
            self._broken = _as_redis_error(exc)
            self._wake.set()

    def _fail(self, error: Exception, *, unsent: bool) -> None:
        """The trips on a broken connection; those not sent yet go by the next one, unless there was none to be had."""
        while self._written:
            self._written.popleft().fail(error)
        if unsent:
            for trip in self._queue:
                trip.fail(error)
            self._queue = []
        if self._queue:
            self._wake.set()
        else:
            self._wake.clear()


def _as_redis_error(exc: Exception) -> Exception:
    """What callers of `execute` know how to take."""
    if isinstance(exc, RedisError | OSError | TimeoutError):
        return exc
    log.warning("the connection to Redis broke: %s: %s", type(exc).__name__, exc)
    return RedisConnectionError(f"{type(exc).__name__}: {exc}")


__all__ = ["Command", "Trips"]
