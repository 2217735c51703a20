"""The gateway's Redis client: no deadline over it is lost."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.redis_client import connect
from tests.billing.support import ValkeyProcess


async def test_a_deadline_ends_a_series_of_commands_wherever_it_falls(redis_url: str) -> None:
    # given commands at which the loop does nothing but send and receive
    redis = connect(redis_url)

    async def ask() -> None:
        for _ in itertools.count():
            await redis.zcard("k")

    others = [asyncio.create_task(ask()) for _ in range(4)]
    # when many deadlines pass, each at another moment of a command; then each is heard
    for number in range(100):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.003 + number * 0.00007):
                await ask()
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await redis.aclose()


@pytest.fixture
def own_valkey() -> Iterator[ValkeyProcess]:
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        server = ValkeyProcess(Path(folder))
        server.start()
        yield server
        server.kill()


async def test_a_server_that_reads_nothing_is_a_timeout_and_one_that_died_an_error(own_valkey: ValkeyProcess) -> None:
    once = Retry(NoBackoff(), 0)
    redis = connect(f"unix://{own_valkey.socket}", retry=once, socket_timeout=30)
    hasty = connect(f"unix://{own_valkey.socket}", retry=once, socket_timeout=30)
    await redis.ping()
    await hasty.ping()
    for connection in hasty.connection_pool._available_connections:
        connection.socket_timeout = 0.2
    own_valkey.freeze()
    with pytest.raises(RedisTimeoutError, match="writing"):
        await hasty.set("k", bytes(16_000_000))  # more than the socket's buffers hold
    own_valkey.kill()
    with pytest.raises(RedisConnectionError):
        await redis.set("k", bytes(16_000_000))
    await redis.aclose()
    await hasty.aclose()


def test_every_scheme_has_our_way_of_sending() -> None:
    made = [
        connect(url).connection_pool.connection_class for url in ("redis://h", "rediss://h", "unix:///s", "redis://h/1")
    ]
    assert {kind.__name__ for kind in made} == {"_TcpConnection", "_TlsConnection", "_UnixConnection"}
    assert issubclass(made[1], SSLConnection)
