"""Real servers for the cache's tests: the contract runs on each, everything else on Valkey."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cache.store import RedisStore
from tests.cache.support import FakeClock, RedisServer, packaged_server, redisearch_server

SERVERS = ["valkey-9.1", "redis-8.2", "redis-7.0", "redis-6.2"]
ABSENT = {"redis-7.0": "no redis-server 7.0 on the PATH (Debian 12: apt-get install redis-server)"}
# A colon-separated list of further redis-server programs to hold to the contract.
SERVERS += [path for path in os.environ.get("WEIR_TEST_REDIS_SERVERS", "").split(":") if path]


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], RedisServer]]:
    """Gives `server(name)`, started at its first use and living as long as the session."""
    running: dict[str, RedisServer] = {}
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:  # a socket's path is short: not pytest's long one

        def server(name: str) -> RedisServer:
            if name not in running:
                if name == "redisearch":
                    command = redisearch_server()
                else:
                    command = (name,) if name.startswith("/") else packaged_server(name)
                if command is None:
                    pytest.skip(ABSENT.get(name, f"{name} is not installed (requirements-dev-nodeps.lock)"))
                home = Path(folder) / str(len(running))
                home.mkdir()
                running[name] = RedisServer(command[0], home, *command[1:])
            return running[name]

        yield server
        for started in running.values():
            started.kill()


@pytest.fixture
async def redis(servers: Callable[[str], RedisServer]) -> AsyncIterator[Redis]:
    client = Redis(unix_socket_path=servers("valkey-9.1").socket)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(redis: Redis, clock: FakeClock) -> RedisStore:
    return RedisStore(redis, clock=clock)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """One that the test may kill or freeze."""
    command = packaged_server("valkey-9.1")
    assert command is not None
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        server = RedisServer(command[0], Path(folder))
        yield server
        server.kill()
