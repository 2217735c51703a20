"""A deadline counted in the loop's own turns."""

from __future__ import annotations

import asyncio
import time

import pytest

from billing.deadline import GivenUp, LoopDeadline, SharedDeadlines


async def test_an_idle_loop_meets_the_deadline() -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        async with LoopDeadline(0.05):
            await asyncio.Event().wait()

    assert 0.05 <= time.monotonic() - begun < 60


async def test_a_reply_that_came_while_the_loop_was_busy_is_not_late() -> None:
    loop = asyncio.get_running_loop()
    reply = loop.create_future()

    def busy() -> None:
        time.sleep(0.1)  # longer than the whole deadline
        loop.call_soon(reply.set_result, "pong")

    loop.call_soon(busy)
    async with LoopDeadline(0.05) as deadline:
        assert await reply == "pong"
    assert deadline.used_s < 0.05


async def test_what_was_used_is_counted() -> None:
    async with LoopDeadline(10.0, slices=1000) as deadline:
        while deadline.used_s < 0.02:  # noqa: ASYNC110 - turning the loop is the point
            await asyncio.sleep(0)
    assert deadline.used_s < 10.0


async def test_no_time_left_raises_at_once() -> None:
    with pytest.raises(TimeoutError):
        async with LoopDeadline(0.0):
            await asyncio.Event().wait()


async def test_errors_inside_pass_through() -> None:
    with pytest.raises(KeyError):
        async with LoopDeadline(1.0):
            raise KeyError("inside")


async def test_many_futures_share_one_timer_and_each_has_its_own_end() -> None:
    loop = asyncio.get_running_loop()
    given_up = GivenUp()
    deadlines = SharedDeadlines(0.01, given_up)
    late, done, patient = (loop.create_future() for _ in range(3))
    counted = deadlines.watch(late, 0.03)
    deadlines.watch(done, 0.03)
    deadlines.watch(patient, 60.0)
    done.set_result("answer")

    with pytest.raises(TimeoutError):
        await late
    assert counted.used_s == pytest.approx(0.03)
    assert await done == "answer"
    assert not patient.done()
    deadlines.close()
    # whoever waited in vain is counted: by the deadline it had, and by how long it took
    bound = given_up.counted.BOUNDS.index(0.05)
    assert given_up.counted.counts[bound] == sum(given_up.counted.counts) == 1
    assert given_up.counted.total_s == pytest.approx(0.03)
    assert sum(given_up.by_clock.counts) == 1
    assert given_up.by_clock.total_s >= 0.029


async def test_a_future_done_while_the_loop_was_busy_keeps_its_result() -> None:
    loop = asyncio.get_running_loop()
    deadlines = SharedDeadlines(0.01)
    reply = loop.create_future()

    def busy() -> None:
        time.sleep(0.1)  # longer than the whole deadline
        loop.call_soon(reply.set_result, "pong")

    loop.call_soon(busy)
    deadlines.watch(reply, 0.02)
    assert await reply == "pong"
    deadlines.close()
