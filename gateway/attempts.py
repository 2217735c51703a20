"""Trying a route's targets until one answers: retries with jitter and fallbacks, before the first token only.

Once a target has begun to answer, its failure is the request's: a client must never see the start of one answer and
the end of another.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from engine.errors import EngineError, EngineUnavailable, QueueFull
from gateway.calls import Call
from gateway.errors import GatewayError, RequestTimeout
from gateway.faults import as_gateway_error
from gateway.metrics import Metrics
from gateway.routing import Route, Target, all_down
from gateway.upstreams.base import Progress, UpstreamError
from gateway.wait_timer import WaitTimer

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0


class Attempts:
    """The tries of one request. `attempt` counts them from 0, `target` is the one that answered or failed last."""

    def __init__(self, call: Call, route: Route, plan: list[Target], metrics: Metrics) -> None:
        self._call = call
        self._route = route
        self._plan = plan
        self._metrics = metrics
        self.attempt = 0
        self.target: Target | None = None

    async def run(self) -> AsyncGenerator[Progress, None]:
        """Raises: GatewayError of the last try when all have failed; RequestTimeout at the call's deadline."""
        failure: Exception | None = None
        for target, is_retry in self._tries():
            if not target.breaker.allows():
                self._metrics.upstream_attempt(target.upstream.name, "open")
                continue
            if failure is not None:
                self.attempt += 1
                if is_retry:
                    await self._back_off(failure)
            self.target = target
            async with aclosing(self._try(target)) as steps:
                try:
                    first = await anext(steps, None)
                except (UpstreamError, EngineError) as exc:
                    if not _may_be_tried_again(exc):
                        raise
                    failure = exc
                    continue
                if first is None:
                    failure = UpstreamError(f"The upstream {target.upstream.name!r} gave no answer.", retryable=True)
                    continue
                yield first
                async for step in steps:
                    yield step
                return
        raise as_gateway_error(failure) if failure is not None else all_down(self._route)

    def _tries(self) -> list[tuple[Target, bool]]:
        """Every target of the plan, each followed by its retries."""
        return [(target, number > 0) for target in self._plan for number in range(self._route.retries + 1)]

    async def _back_off(self, failure: Exception) -> None:
        """Full jitter, so that many clients of a recovering upstream do not return together."""
        limit = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**self.attempt)
        asked = getattr(failure, "retry_after_s", None)
        delay = random.uniform(0, limit) if asked is None else min(asked, MAX_BACKOFF_S)  # noqa: S311
        if time.monotonic() + delay >= self._call.deadline:
            raise as_gateway_error(failure) from failure
        await asyncio.sleep(delay)

    async def _try(self, target: Target) -> AsyncGenerator[Progress, None]:
        """One target's answer, its breaker and metrics told how it went."""
        result = "abandoned"
        try:
            stream: Any = target.upstream.generate(self._call, self.attempt)
            async with aclosing(stream) as steps:
                async for step in _bounded(steps, self._call.deadline, self._route.timeout_s, target):
                    yield step
            result = "ok"
        except (UpstreamError, EngineError) as exc:
            result = "failed" if _says_ill(exc) else "ok"
            raise
        except GatewayError:
            result = "ok"
            raise
        finally:
            self._report(target, result)

    def _report(self, target: Target, result: str) -> None:
        if result == "ok":
            target.breaker.succeeded()
        elif result == "failed":
            target.breaker.failed()
        else:
            target.breaker.abandoned()
        self._metrics.upstream_attempt(target.upstream.name, result)


async def _bounded(
    steps: AsyncGenerator[Progress, None], deadline: float, first_timeout_s: float | None, target: Target
) -> AsyncGenerator[Progress, None]:
    """The steps until `deadline` (monotonic); the first within `first_timeout_s`.

    The timeouts stand around each wait, never around a yield: what the consumer does there is not ours to cancel.
    """
    limit = deadline if first_timeout_s is None else min(deadline, time.monotonic() + first_timeout_s)
    timer = WaitTimer(limit)
    try:
        while True:
            try:
                step = await timer.bounds(anext(steps, None))
            except TimeoutError as exc:
                if limit < deadline:
                    raise UpstreamError(
                        f"The upstream {target.upstream.name!r} did not begin to answer in time.", retryable=True
                    ) from exc
                raise RequestTimeout("The request took longer than this server allows.") from exc
            if step is None:
                return
            if limit < deadline:
                limit = deadline
                timer.move(limit)
            yield step
    finally:
        timer.cancel()


def _may_be_tried_again(exc: UpstreamError | EngineError) -> bool:
    if isinstance(exc, UpstreamError):
        return exc.retryable
    return isinstance(exc, QueueFull | EngineUnavailable)


def _says_ill(exc: UpstreamError | EngineError) -> bool:
    """Whether the failure says something of the upstream's health: a full queue is busy, not ill."""
    if isinstance(exc, UpstreamError):
        return exc.retryable and exc.status != 429
    return isinstance(exc, EngineUnavailable)
