"""Single flight across gateways: the generation's events go through a leased Redis stream.

The first gateway to take the lease generates and publishes; the others read the stream from its start and feed their
own participants. The lease is renewed while the generation runs, so when its gateway dies it runs out, and each
follower generates on its own, as it does when the generation fails. When Redis does not answer, every gateway flies
alone: one flight a process is still one flight.

A key is an exact key, hence never shared between partitions or tenants.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Generic, TypeVar

import msgspec
from redis.asyncio import Redis

from cache.errors import LeaderFailed
from cache.keys import TenantKeys
from cache.single_flight import Flight, Produce, SingleFlight
from cache.store import STORE_TROUBLE, RedisStore

E = TypeVar("E")

log = logging.getLogger(__name__)

MAX_FOLLOWED = 64  # each followed generation holds one connection while it waits for events
BLOCK_MS = 80  # below the usual socket timeout of 100 ms; new events end the wait at once

# Both act only while the lease is still ours: another gateway may have taken it after ours ran out.
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class FlightTiming(msgspec.Struct, frozen=True, kw_only=True):
    """`lease_s`: how long after a gateway's death its followers wait; `claim_timeout_s`: for Redis before flying alone;
    `linger_s`: how long a finished stream stays for followers that are behind; `unwatched_s`: how often events are
    written while nobody follows, so that a generation that nobody else asks for costs Redis next to nothing."""

    lease_s: float = 3.0
    claim_timeout_s: float = 0.1
    unwatched_s: float = 0.2
    linger_s: float = 10.0


class _RemoteFailed(Exception):
    """The generation that was followed failed, or its lease ran out."""


class SharedFlight(Generic[E]):
    """Flights shared by all gateways on one Redis. `encode` and `decode` carry one event."""

    def __init__(
        self,
        store: RedisStore,
        *,
        encode: Callable[[E], bytes],
        decode: Callable[[bytes], E],
        is_last: Callable[[E], bool],
        timing: FlightTiming = FlightTiming(),  # noqa: B008  # frozen
    ) -> None:
        self._store, self._encode, self._decode, self._timing = store, encode, decode, timing
        self._local: SingleFlight[E] = SingleFlight(is_last=is_last, watched=self._watched)
        self._leading: dict[str, TenantKeys] = {}
        self._followed = asyncio.Semaphore(MAX_FOLLOWED)

    @property
    def num_running(self) -> int:
        return self._local.num_running

    def join(self, tenant: str, key: str, produce: Produce[E], *, alone: bool = False) -> Flight[E]:
        """A seat as in `SingleFlight.join`. Whose `produce` is called generates, and pays for it; all others follow.

        `alone`: fly in this process only; for a request whose lookup has already waited in vain for Redis.
        """
        keys = self._store.keys(tenant)
        if alone:
            return self._local.join(f"{keys.tenant}:{key}", produce)
        return self._local.join(f"{keys.tenant}:{key}", lambda: self._produce(keys, key, produce))

    async def close(self) -> None:
        """Cancels what still runs; followers elsewhere are told."""
        await self._local.close()

    async def _produce(self, keys: TenantKeys, key: str, produce: Produce[E]) -> AsyncGenerator[E, None]:
        token = secrets.token_hex(8)
        holder = await self._claim(keys, key, token)
        if holder == token:
            async for event in self._lead(keys, key, token, produce):
                yield event
            return
        delivered, failure = 0, None
        if holder is not None and not self._followed.locked():
            try:
                async with self._followed:
                    async for event in self._follow(keys, key, holder):
                        delivered += 1
                        yield event
            except _RemoteFailed as exc:
                failure = exc
            else:
                return
        if failure is not None and delivered:
            raise LeaderFailed(str(failure), delivered=delivered) from failure
        async for event in _closing(produce()):
            yield event

    async def _claim(self, keys: TenantKeys, key: str, token: str) -> str | None:
        """The token of who holds the lease now, ourselves if we took it; None if Redis does not say."""
        lease_ms = int(self._timing.lease_s * 1000)
        pipe = self._store.redis.pipeline(transaction=False)
        pipe.set(keys.flight_lease(key), token, nx=True, px=lease_ms)
        pipe.get(keys.flight_lease(key))
        try:
            async with asyncio.timeout(self._timing.claim_timeout_s):
                _, holder = await pipe.execute()
        except STORE_TROUBLE:
            return None
        return holder.decode() if isinstance(holder, bytes) else None

    async def _lead(self, keys: TenantKeys, key: str, token: str, produce: Produce[E]) -> AsyncGenerator[E, None]:
        publisher = _Publisher(self._store.redis, keys, key, token, self._timing)
        name = f"{keys.tenant}:{key}"
        self._leading[name] = keys
        outcome = "failed"
        try:
            async for event in _closing(produce()):
                publisher.publish(self._encode(event))
                yield event
            outcome = "end"
        finally:
            self._leading.pop(name, None)
            await publisher.close(outcome)

    async def _follow(self, keys: TenantKeys, key: str, token: str) -> AsyncIterator[E]:
        redis, follower = self._store.redis, secrets.token_hex(8)
        stream, last = keys.flight_events(key, token), "0"
        try:
            while True:
                pipe = redis.pipeline(transaction=False)
                pipe.zadd(keys.flight_watchers(key), {follower: int(time.time() * 1000)})
                pipe.pexpire(keys.flight_watchers(key), int(self._timing.lease_s * 1000))
                pipe.get(keys.flight_lease(key))
                holder = (await pipe.execute())[-1]
                batches = await _read(redis, stream, last)
                for name, fields in batches:
                    last = name
                    for raw in msgspec.msgpack.decode(fields[b"e"], type=list[bytes]):
                        yield self._decode(raw)
                    if fields[b"s"] == b"end":
                        return
                    if fields[b"s"] == b"failed":
                        raise _RemoteFailed("the generation on another gateway failed")
                if not batches and holder != token.encode():
                    raise _RemoteFailed("the gateway that generated is gone")
        except STORE_TROUBLE as exc:
            raise _RemoteFailed(f"following through Redis failed: {type(exc).__name__}") from exc
        finally:
            with contextlib.suppress(*STORE_TROUBLE):
                await redis.zrem(keys.flight_watchers(key), follower)

    async def _watched(self, name: str) -> bool:
        """Whether a gateway elsewhere follows what this one generates."""
        keys = self._leading.get(name)
        if keys is None:
            return False
        key = name.partition(":")[2]
        since_ms = int((time.time() - self._timing.lease_s) * 1000)
        try:
            async with asyncio.timeout(self._timing.claim_timeout_s):
                return bool(await self._store.redis.zcount(keys.flight_watchers(key), since_ms, "+inf"))
        except STORE_TROUBLE:
            return False


class _Publisher:
    """Writes events to the stream in the background, as many at a time as have come up, and keeps the lease alive."""

    def __init__(self, redis: Redis, keys: TenantKeys, key: str, token: str, timing: FlightTiming) -> None:
        self._redis, self._token, self._timing = redis, token, timing
        self._lease, self._stream = keys.flight_lease(key), keys.flight_events(key, token)
        self._watchers = keys.flight_watchers(key)
        self._watched = False
        self._pending: list[bytes] = []
        self._outcome = ""
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="flight-publisher")

    def publish(self, raw: bytes) -> None:
        self._pending.append(raw)
        self._wake.set()

    async def close(self, outcome: str) -> None:
        """Writes what is left and the end mark, and gives the lease back; waits for it as long as for a claim."""
        self._outcome = outcome
        self._closing.set()
        self._wake.set()
        # A Redis that hangs must not hold up the participants: the task goes on by itself until its own deadline.
        await asyncio.wait([self._task], timeout=self._timing.claim_timeout_s)

    async def _run(self) -> None:
        lease_ms = int(self._timing.lease_s * 1000)
        try:
            ended = False
            while not ended:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._timing.lease_s / 3):
                        await self._wake.wait()
                if not self._watched:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(min(self._timing.unwatched_s, self._timing.lease_s / 3)):
                            await self._closing.wait()
                self._wake.clear()
                ended = await self._flush(lease_ms)
        except STORE_TROUBLE as exc:
            # Followers see the lease run out and generate on their own; this gateway's participants notice nothing.
            log.warning("publishing a flight failed: %s", type(exc).__name__)

    async def _flush(self, lease_ms: int) -> bool:
        """Returns whether the end mark was written."""
        events, self._pending = self._pending, []
        ended = self._outcome
        pipe: Any = self._redis.pipeline(transaction=False)
        if events or ended:
            pipe.xadd(self._stream, {"e": msgspec.msgpack.encode(events), "s": ended})
            keep_s = self._timing.linger_s if ended else self._timing.lease_s + self._timing.linger_s
            pipe.pexpire(self._stream, int(keep_s * 1000))
        if ended:
            pipe.eval(_RELEASE, 1, self._lease, self._token)
        else:
            pipe.eval(_RENEW, 1, self._lease, self._token, lease_ms)
            pipe.exists(self._watchers)
        async with asyncio.timeout(self._timing.lease_s):
            replies = await pipe.execute()
        self._watched = bool(replies[-1])
        return bool(ended)


async def _read(redis: Redis, stream: str, last: str) -> list[tuple[str, dict[bytes, bytes]]]:
    reply: Any = await redis.xread({stream: last}, block=BLOCK_MS)
    if not reply:
        return []
    if isinstance(reply, dict):  # RESP3
        entries = next(iter(reply.values()))
        entries = entries[0] if entries and isinstance(entries[0], list) else entries
    else:
        entries = reply[0][1]
    return [(name.decode(), fields) for name, fields in entries]


async def _closing(iterator: AsyncIterator[E]) -> AsyncIterator[E]:
    """Closes the inner generator at once when the outer one is closed, so that an abort reaches the engine."""
    try:
        async for event in iterator:
            yield event
    finally:
        aclose = getattr(iterator, "aclose", None)
        if aclose is not None:
            await aclose()
