"""One process: identical concurrent misses make one generation, and nobody's leaving or failing harms the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cache.errors import LeaderFailed
from cache.single_flight import Flight, SingleFlight


class Generation:
    """A `produce` whose events the test releases one by one."""

    def __init__(self) -> None:
        self.started = 0
        self.closed = 0
        self.queue: asyncio.Queue[str | Exception | None] = asyncio.Queue()

    async def __call__(self) -> AsyncIterator[str]:
        self.started += 1
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed += 1

    def say(self, *items: str | Exception | None) -> None:
        for item in items:
            self.queue.put_nowait(item)


async def collect(flight: Flight[str]) -> list[str]:
    async with flight:
        return [event async for event in flight]


async def test_many_identical_misses_make_one_generation_that_all_see_whole() -> None:
    flights: SingleFlight[str] = SingleFlight()
    generation = Generation()
    seats = [flights.join("k", generation) for _ in range(50)]
    generation.say("a", "b", "c", None)
    results = await asyncio.gather(*map(collect, seats))
    assert results == [["a", "b", "c"]] * 50
    assert (generation.started, [seat.leader for seat in seats].count(True)) == (1, 1)
    assert flights.num_running == 0


async def test_followers_stream_along_and_a_late_one_starts_from_the_first_event() -> None:
    flights: SingleFlight[str] = SingleFlight()
    generation = Generation()
    leader, follower = flights.join("k", generation), flights.join("k", generation)
    generation.say("a")
    assert [await anext(leader), await anext(follower)] == ["a", "a"]  # before the generation has ended
    late = flights.join("k", generation)
    generation.say("b", None)
    assert await collect(late) == ["a", "b"]
    assert await collect(follower) == ["b"]


async def test_other_keys_fly_apart() -> None:
    flights: SingleFlight[str] = SingleFlight()
    one, other = Generation(), Generation()
    seats = flights.join("partition-1", one), flights.join("partition-2", other)
    one.say("1", None)
    other.say("2", None)
    assert [await collect(seat) for seat in seats] == [["1"], ["2"]]


async def test_when_the_leader_leaves_the_generation_goes_on_for_the_followers() -> None:
    flights: SingleFlight[str] = SingleFlight()
    generation = Generation()
    leader, follower = flights.join("k", generation), flights.join("k", generation)
    generation.say("a")
    await anext(leader)
    leader.leave()
    generation.say("b", None)
    assert await collect(follower) == ["a", "b"]


async def test_when_the_last_one_leaves_the_generation_is_closed_at_once() -> None:
    flights: SingleFlight[str] = SingleFlight()
    generation = Generation()
    leader, follower = flights.join("k", generation), flights.join("k", generation)
    generation.say("a")
    await anext(leader)
    leader.leave()
    leader.leave()  # twice is harmless
    await asyncio.sleep(0)
    assert generation.closed == 0
    follower.leave()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (generation.closed, flights.num_running) == (1, 0)


async def test_after_the_last_event_leaving_no_longer_cancels_what_settles_and_stores() -> None:
    stored = asyncio.Event()
    release = asyncio.Event()

    async def produce() -> AsyncIterator[str]:
        yield "a"
        yield "last"
        await release.wait()
        stored.set()

    flights: SingleFlight[str] = SingleFlight(is_last=lambda event: event == "last")
    seat = flights.join("k", produce)
    assert [await anext(seat), await anext(seat)] == ["a", "last"]
    seat.leave()
    late = flights.join("k", produce)  # between the last event and the store: no second generation
    assert not late.leader
    release.set()
    await asyncio.wait_for(stored.wait(), 60)
    assert await collect(late) == ["a", "last"]


async def test_a_failing_leader_gets_its_error_and_each_follower_may_retry() -> None:
    flights: SingleFlight[str] = SingleFlight()
    generation = Generation()
    leader, follower = flights.join("k", generation), flights.join("k", generation)
    generation.say(ConnectionError("upstream"))
    with pytest.raises(ConnectionError, match="upstream"):
        await collect(leader)
    with pytest.raises(LeaderFailed) as failure:
        await collect(follower)
    assert failure.value.delivered == 0
    retry = Generation()
    again = flights.join("k", retry)
    retry.say("ok", None)
    assert (again.leader, await collect(again)) == (True, ["ok"])


async def test_a_failure_in_the_middle_tells_how_much_was_delivered() -> None:
    flights: SingleFlight[str] = SingleFlight()
    generation = Generation()
    _leader, follower = flights.join("k", generation), flights.join("k", generation)
    generation.say("a", "b", ValueError("broken"))
    assert [await anext(follower), await anext(follower)] == ["a", "b"]
    with pytest.raises(LeaderFailed) as failure:
        await anext(follower)
    assert failure.value.delivered == 2


async def test_a_participant_cancelled_while_waiting_leaves_the_others_alone() -> None:
    flights: SingleFlight[str] = SingleFlight()
    generation = Generation()
    leader, follower = flights.join("k", generation), flights.join("k", generation)
    task = asyncio.create_task(collect(leader))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    generation.say("a", None)
    assert await collect(follower) == ["a"]


async def test_a_flight_too_long_to_replay_takes_no_more_passengers() -> None:
    flights: SingleFlight[str] = SingleFlight(max_buffered_events=2)
    generation, own = Generation(), Generation()
    leader = flights.join("k", generation)
    generation.say("a", "b", "c")
    for _ in range(3):
        await anext(leader)
    late = flights.join("k", own)
    assert late.leader
    own.say("x", None)
    generation.say(None)
    assert (await collect(late), await collect(leader)) == (["x"], [])


async def test_closing_fails_whoever_still_flies() -> None:
    flights: SingleFlight[str] = SingleFlight()
    generation = Generation()
    leader, follower = flights.join("k", generation), flights.join("k", generation)
    await asyncio.sleep(0)
    await flights.close()
    for seat in (leader, follower):
        with pytest.raises(LeaderFailed):
            await collect(seat)
    assert generation.closed == 1
