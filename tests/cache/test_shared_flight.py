"""Several gateways on one Redis: one generation among them, whoever leaves, fails or dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from redis.asyncio import Redis

from cache.errors import LeaderFailed
from cache.shared_flight import FlightTiming, SharedFlight
from cache.single_flight import Flight
from cache.store import RedisStore
from gateway.redis_client import connect
from tests.cache.conftest import SERVERS
from tests.cache.support import RedisServer
from tests.cache.test_single_flight import Generation, collect

QUICK = FlightTiming(lease_s=2, claim_timeout_s=60)
HASTY = FlightTiming(lease_s=2, claim_timeout_s=0.2)  # for a Redis that does not answer
PATIENT = FlightTiming(lease_s=60, claim_timeout_s=60)  # a slow machine is no absent Redis


def gateway(redis: Redis, timing: FlightTiming = PATIENT) -> SharedFlight[str]:
    return SharedFlight(
        RedisStore(redis), encode=str.encode, decode=bytes.decode, is_last=lambda e: e == "last", timing=timing
    )


@pytest.fixture(params=SERVERS)
async def redis(request: pytest.FixtureRequest, servers: Callable[[str], RedisServer]) -> AsyncIterator[Redis]:
    client = connect(f"unix://{servers(request.param).socket}")
    await client.flushall()
    yield client
    await client.aclose()


async def leading(flights: SharedFlight[str], generation: Generation, key: str = "k") -> Flight[str]:
    """A seat whose generation has started, with its first event out."""
    seat = flights.join("acme", key, generation)
    generation.say("a")
    assert await anext(seat) == "a"
    return seat


async def test_a_second_gateway_follows_the_firsts_generation_as_it_is_made(redis: Redis) -> None:
    one, two, unused = gateway(redis), gateway(redis), Generation()
    generation = Generation()
    leader = await leading(one, generation)
    follower = two.join("acme", "k", unused)
    assert await asyncio.wait_for(anext(follower), 60) == "a"  # while the generation still runs
    generation.say("ü", "last", None)
    assert await asyncio.wait_for(collect(follower), 60) == ["ü", "last"]
    assert await collect(leader) == ["ü", "last"]
    assert (generation.started, unused.started) == (1, 0)


async def test_many_gateways_make_one_generation(redis: Redis) -> None:
    generations = [Generation() for _ in range(6)]
    seats = [gateway(redis).join("acme", "k", generation) for generation in generations]
    results = asyncio.gather(*map(collect, seats))
    watchers = RedisStore(redis).keys("acme").flight_watchers("k")
    async with asyncio.timeout(60):
        while await redis.zcard(watchers) < 5:
            assert not results.done()
    for generation in generations:
        generation.say(*"abc", "last", None)
    results = await asyncio.wait_for(results, 60)
    assert results == [["a", "b", "c", "last"]] * 6
    assert sum(generation.started for generation in generations) == 1


async def test_both_protocols_of_redis_carry_a_flight(servers: Callable[[str], RedisServer]) -> None:
    for protocol in (2, 3):
        client = connect(f"unix://{servers('valkey-9.1').socket}", protocol=protocol)
        await client.flushall()
        generation, unused = Generation(), Generation()
        await leading(gateway(client), generation)
        follower = gateway(client).join("acme", "k", unused)
        assert await asyncio.wait_for(anext(follower), 60) == "a"
        generation.say("b", "last", None)
        assert await asyncio.wait_for(collect(follower), 60) == ["b", "last"]
        assert unused.started == 0
        await client.aclose()


async def test_tenants_and_keys_never_share_a_flight(redis: Redis) -> None:
    one, two = gateway(redis), gateway(redis)
    mine, theirs, other = Generation(), Generation(), Generation()
    for generation, word in ((mine, "mine"), (theirs, "theirs"), (other, "other")):
        generation.say(word, None)
    seats = [one.join("acme", "k", mine), two.join("globex", "k", theirs), two.join("acme", "k2", other)]
    assert await asyncio.gather(*map(collect, seats)) == [["mine"], ["theirs"], ["other"]]


async def test_when_the_leading_client_leaves_the_generation_goes_on_for_another_gateway(redis: Redis) -> None:
    one, two = gateway(redis), gateway(redis)
    generation = Generation()
    leader = await leading(one, generation)
    follower = two.join("acme", "k", Generation())
    assert await asyncio.wait_for(anext(follower), 60) == "a"
    leader.leave()
    generation.say("b", "last", None)
    assert await asyncio.wait_for(collect(follower), 60) == ["b", "last"]
    assert generation.started == 1


async def test_when_nobody_anywhere_follows_the_generation_is_cancelled(redis: Redis) -> None:
    one = gateway(redis)
    generation = Generation()
    leader = await leading(one, generation)
    leader.leave()
    await asyncio.wait_for(until(lambda: generation.closed == 1), 60)
    await asyncio.wait_for(until(lambda: one.num_running == 0), 60)


async def test_a_failure_before_the_first_event_is_retried_by_the_follower_itself(redis: Redis) -> None:
    one, two = gateway(redis), gateway(redis)
    failing, own = Generation(), Generation()
    leader = one.join("acme", "k", failing)
    await asyncio.wait_for(until(lambda: failing.started == 1), 60)
    follower = two.join("acme", "k", own)
    own.say("own", None)
    task = asyncio.create_task(collect(follower))
    failing.say(ConnectionError("upstream"))
    with pytest.raises(ConnectionError):
        await collect(leader)
    assert await asyncio.wait_for(task, 60) == ["own"]


async def test_a_failure_in_the_middle_reaches_the_follower_with_what_it_got(redis: Redis) -> None:
    one, two = gateway(redis), gateway(redis)
    generation = Generation()
    leader = await leading(one, generation)
    follower = two.join("acme", "k", Generation())
    assert await asyncio.wait_for(anext(follower), 60) == "a"
    generation.say(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await collect(leader)
    with pytest.raises(LeaderFailed) as failure:
        await asyncio.wait_for(collect(follower), 60)
    assert failure.value.delivered == 1


async def test_when_the_leading_gateway_dies_the_follower_generates_on_its_own(redis: Redis) -> None:
    # given a lease whose gateway was killed before it wrote anything
    keys = RedisStore(redis).keys("acme")
    await redis.set(keys.flight_lease("k"), "dead", px=2000)
    own = Generation()
    own.say("own", None)
    # when another gateway misses the same question
    seat = gateway(redis, QUICK).join("acme", "k", own)
    # then it waits for the lease to run out, and goes by itself
    assert await asyncio.wait_for(collect(seat), 60) == ["own"]


async def test_a_generation_longer_than_the_lease_keeps_it(redis: Redis) -> None:
    one, two = gateway(redis, QUICK), gateway(redis, QUICK)
    generation = Generation()
    leader = await leading(one, generation)
    follower = two.join("acme", "k", Generation())
    assert await asyncio.wait_for(anext(follower), 60) == "a"
    await asyncio.wait([asyncio.create_task(follower.__anext__())], timeout=1.5 * QUICK.lease_s)
    generation.say("b", "last", None)
    assert await asyncio.wait_for(collect(leader), 60) == ["b", "last"]
    assert generation.started == 1


async def test_without_redis_a_gateway_flies_alone(own_server: RedisServer) -> None:
    client = connect(f"unix://{own_server.socket}", socket_timeout=600)  # its own patience proves nothing
    own_server.freeze()
    generation = Generation()
    generation.say("a", "last", None)
    flights = gateway(client, HASTY)
    seats = [flights.join("acme", "k", generation) for _ in range(3)]
    assert await asyncio.wait_for(asyncio.gather(*map(collect, seats)), 60) == [["a", "last"]] * 3
    assert generation.started == 1
    own_server.thaw()
    await client.aclose()


async def test_a_redis_that_freezes_during_a_flight_does_not_hold_its_participants_up(own_server: RedisServer) -> None:
    client = connect(f"unix://{own_server.socket}", socket_timeout=600)  # its own patience proves nothing
    flights, generation = gateway(client, FlightTiming(claim_timeout_s=2)), Generation()
    leader = await leading(flights, generation)
    own_server.freeze()
    generation.say("b", "last", None)
    assert await asyncio.wait_for(collect(leader), 60) == ["b", "last"]
    own_server.thaw()
    await client.aclose()


async def test_alone_a_flight_does_not_ask_redis(own_server: RedisServer) -> None:
    client = connect(f"unix://{own_server.socket}", socket_timeout=600)  # its own patience proves nothing
    own_server.freeze()
    generation = Generation()
    generation.say("a", "last", None)
    seat = gateway(client, FlightTiming(claim_timeout_s=600)).join("acme", "k", generation, alone=True)
    assert await asyncio.wait_for(collect(seat), 60) == ["a", "last"]
    own_server.thaw()
    await client.aclose()


async def test_nothing_stays_behind_in_redis_but_streams_that_expire(redis: Redis) -> None:
    generation = Generation()
    generation.say("a", "last", None)
    await collect(gateway(redis).join("acme", "k", generation))
    left = [key async for key in redis.scan_iter("*")]
    assert len(left) == 1
    assert 0 < await redis.pttl(left[0]) <= 10_000


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until a condition holds; the caller bounds it."""
    while not condition():  # noqa: ASYNC110  # what is waited for has no event
        await asyncio.sleep(0.005)


async def test_events_that_nobody_follows_are_written_together(redis: Redis) -> None:
    # given a generation without followers elsewhere, and all the time in the world between two writings
    rare = FlightTiming(lease_s=60, unwatched_s=60)
    generation = Generation()
    leader = await leading(gateway(redis, rare), generation)
    for event in "bcdef":
        generation.say(event)
        assert await anext(leader) == event
    # then Redis has heard of none of them
    assert [key async for key in redis.scan_iter("*:f:k:*")] == []
    # when it ends, then they stand there as one, for whoever was late
    generation.say("last", None)
    assert await collect(leader) == ["last"]
    [stream] = [key async for key in redis.scan_iter("*:f:k:*")]
    assert await redis.xlen(stream) == 1
