"""A deadline counted in the loop's own turns."""

from __future__ import annotations

import asyncio
import time

import pytest

from billing.deadline import LoopDeadline


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
