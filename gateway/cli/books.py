"""The books as commands open them: the database, the server secret, and the bus that tells running gateways."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from redis.asyncio import Redis

from billing.bus import ChangeBus
from billing.db import Database
from billing.principal import Actor
from billing.secrets import ServerSecret
from billing.service import Billing, BillingSettings
from gateway import redis_client
from gateway.cli.context import CliContext
from gateway.embedded_redis import DataDirLock, EmbeddedRedis, redis_url, socket_path
from gateway.settings import Settings
from gateway.startup import StartupError

T = TypeVar("T")


class Books:
    """What an administrative command works on. `actor` is this host's operator."""

    def __init__(self, settings: Settings, db: Database) -> None:
        self.settings = settings
        self.db = db
        self.actor = Actor.operator()

    @property
    def secret(self) -> ServerSecret:
        return ServerSecret.load(self.settings.effective_secret_file)


@contextlib.asynccontextmanager
async def open_books(settings: Settings) -> AsyncIterator[Books]:
    """Opens the database; what a command changes is published to running gateways where a Redis is to be had."""
    db = Database(settings.effective_database_url)
    redis = _redis(settings)
    if redis is not None:
        db.publish = ChangeBus(redis).publish
    try:
        yield Books(settings, db)
    finally:
        if redis is not None:
            await redis.aclose()
        await db.close()


def _redis(settings: Settings) -> Redis | None:
    if settings.redis_url:
        return redis_client.connect(settings.redis_url)
    if socket_path(settings.data_path).exists():
        return redis_client.connect(redis_url(settings.data_path))
    return None  # no gateway runs here: nobody is to be told


def run_with_books(obj: CliContext, work: Callable[[Books], Coroutine[Any, Any, T]]) -> T:
    """Opens the books, runs `work` on them, closes them. Raises: BillingError, which `main` prints."""

    async def go() -> T:
        async with open_books(obj.settings) as books:
            return await work(books)

    return obj.run(go())


def run_with_billing(obj: CliContext, work: Callable[[Billing], Coroutine[Any, Any, T]]) -> T:
    """As `run_with_books`, with the counters in Redis and the journal too; nothing of it runs by itself."""

    async def go() -> T:
        with redis_at_hand(obj.settings) as url:
            redis = redis_client.connect(url)
            secret = ServerSecret.load(obj.settings.effective_secret_file)
            settings = BillingSettings(
                database_url=obj.settings.effective_database_url, journal=obj.settings.data_path / "journal"
            )
            billing = Billing(settings, redis, secret)
            try:
                return await work(billing)
            finally:
                await billing.stop()
                await redis.aclose()

    return obj.run(go())


@contextlib.contextmanager
def redis_at_hand(settings: Settings) -> Iterator[str]:
    """The configured Redis, that of the gateway running here, or the embedded one, started for the while."""
    if settings.redis_url:
        yield settings.redis_url
        return
    lock = DataDirLock(settings.data_path)
    try:
        lock.acquire()
    except StartupError:
        yield redis_url(settings.data_path)
        return
    try:
        with EmbeddedRedis(settings.data_path) as server:
            yield server.url
    finally:
        lock.release()
