"""All trips to Redis over one connection: replies find their trips, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from billing import trips as trips_module
from billing.trips import Command, Trips
from tests.billing.support import ValkeyProcess

LONG_S = 60.0


def command(*arguments: Any) -> list[Command]:
    return [arguments]


@pytest.fixture
async def away(own_valkey: ValkeyProcess) -> AsyncIterator[Trips]:
    """Trips to a server that the test may kill or freeze."""
    client = Redis(unix_socket_path=own_valkey.socket)
    trips = Trips(client)
    yield trips
    await trips.close()
    await client.aclose()


@pytest.fixture
async def trips(redis: Redis) -> AsyncIterator[Trips]:
    made = Trips(redis)
    yield made
    await made.close()


async def test_many_trips_at_once_each_get_their_own_replies(trips: Trips) -> None:
    async def one(number: int) -> list[Any]:
        commands = [*command("SET", f"k{number}", number), *command("GET", f"k{number}"), *command("ECHO", b"\xff")]
        replies, _ = await trips.execute(commands, deadline_s=LONG_S)
        return replies

    results = await asyncio.gather(*map(one, range(500)))
    assert results == [[b"OK", str(number).encode(), b"\xff"] for number in range(500)]


async def test_replies_are_as_redis_sends_them(trips: Trips) -> None:
    commands = [
        *command("HSET", "h", "a", 1),
        *command("HMGET", "h", "a", "c"),
        *command("ZADD", "z", 3, "m"),
        *command("PEXPIRE", "h", 60_000),
    ]
    replies, _ = await trips.execute(commands, deadline_s=LONG_S)
    assert replies == [1, [b"1", None], 1, 1]


async def test_a_command_that_fails_fails_alone(trips: Trips) -> None:
    await trips.execute(command("SET", "text", "x"), deadline_s=LONG_S)
    commands = [*command("INCR", "text"), *command("GET", "text")]
    replies, _ = await trips.execute(commands, deadline_s=LONG_S)
    assert isinstance(replies[0], ResponseError)
    assert replies[1] == b"x"


async def test_an_argument_that_redis_has_no_form_for_fails_its_own_trip_only(trips: Trips) -> None:
    good = asyncio.create_task(trips.execute(command("ECHO", "fine"), deadline_s=LONG_S))
    with pytest.raises(TypeError):
        await trips.execute(command("SET", "k", None), deadline_s=LONG_S)
    assert (await good)[0] == [b"fine"]


async def test_a_trip_that_was_given_up_leaves_the_others_their_replies(away: Trips, own_valkey: ValkeyProcess) -> None:
    await away.execute(command("SET", "k", "v"), deadline_s=LONG_S)
    own_valkey.freeze()
    with pytest.raises(TimeoutError):
        await away.execute(command("GET", "given-up"), deadline_s=0.05)
    cancelled = asyncio.create_task(away.execute(command("GET", "cancelled"), deadline_s=LONG_S))
    waiting = asyncio.create_task(away.execute(command("GET", "k"), deadline_s=LONG_S))
    await asyncio.sleep(0)
    cancelled.cancel()
    own_valkey.thaw()
    replies, _ = await waiting
    assert replies == [b"v"]


async def test_a_trip_without_commands_takes_nobodys_reply(trips: Trips) -> None:
    one, none, two = await asyncio.gather(
        trips.execute(command("ECHO", "one"), deadline_s=LONG_S),
        trips.execute([], deadline_s=LONG_S),
        trips.execute(command("ECHO", "two"), deadline_s=LONG_S),
    )
    assert (one[0], none[0], two[0]) == ([b"one"], [], [b"two"])


async def test_no_time_left_sends_nothing(trips: Trips, redis: Redis) -> None:
    with pytest.raises(TimeoutError):
        await trips.execute(command("SET", "k", "v"), deadline_s=0.0)
    assert await redis.get("k") is None


async def test_trips_under_way_fail_when_the_server_dies_and_the_next_connects_anew(
    away: Trips, own_valkey: ValkeyProcess
) -> None:
    await away.execute(command("PING"), deadline_s=LONG_S)
    own_valkey.freeze()
    under_way = [asyncio.create_task(away.execute(command("GET", "k"), deadline_s=LONG_S)) for _ in range(3)]
    await asyncio.sleep(0)
    own_valkey.kill()
    for outcome in await asyncio.gather(*under_way, return_exceptions=True):
        assert isinstance(outcome, RedisConnectionError)
    with pytest.raises((RedisConnectionError, OSError)):
        await away.execute(command("PING"), deadline_s=LONG_S)
    own_valkey.start()
    assert (await away.execute(command("PING"), deadline_s=LONG_S))[0] == [b"PONG"]


async def test_closing_ends_at_once_even_while_it_connects(away: Trips, own_valkey: ValkeyProcess) -> None:
    own_valkey.freeze()
    waiting = asyncio.create_task(away.execute(command("PING"), deadline_s=LONG_S))
    await asyncio.sleep(0)
    async with asyncio.timeout(LONG_S):
        await away.close()
    own_valkey.thaw()
    with pytest.raises(RedisConnectionError):
        await waiting


class _ClosedUnderneath(UnixDomainSocketConnection):
    """What uvloop does with a write in the turn in which the connection was reset, before its reader hears of it."""

    breaks = False

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if type(self).breaks:
            type(self).breaks = False
            raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")
        await super().send_packed_command(command, check_health=check_health)


async def test_no_trip_gets_anothers_reply_after_a_write_on_a_transport_that_had_just_closed(redis: Redis) -> None:
    redis.connection_pool.connection_class = _ClosedUnderneath
    trips = Trips(redis)
    await trips.execute(command("PING"), deadline_s=LONG_S)
    _ClosedUnderneath.breaks = True
    with pytest.raises(RedisConnectionError, match="closed"):
        await trips.execute(command("ECHO", "lost"), deadline_s=LONG_S)
    replies = await asyncio.gather(*(trips.execute(command("ECHO", str(n)), deadline_s=LONG_S) for n in range(3)))
    assert [reply for (reply,), _ in replies] == [b"0", b"1", b"2"]
    await trips.close()


async def test_a_server_that_reads_nothing_any_more_is_given_up_even_in_the_middle_of_a_write(
    away: Trips, own_valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    await away.execute(command("PING"), deadline_s=LONG_S)
    monkeypatch.setattr(trips_module, "STALLED_S", 0.1)
    own_valkey.freeze()
    large = asyncio.create_task(away.execute(command("SET", "k", b"x" * 32_000_000), deadline_s=LONG_S))
    done, _ = await asyncio.wait({large}, timeout=LONG_S / 2)
    own_valkey.thaw()
    assert done
    with pytest.raises((RedisConnectionError, TimeoutError)):
        await large
    assert (await away.execute(command("PING"), deadline_s=LONG_S))[0] == [b"PONG"]
