"""Semantic hits generated again in the background, and what is said of them; dead entries reaped."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from cache.invalidation import Invalidator
from cache.shadow import ShadowEstimate, ShadowLog
from cache.store import RedisStore
from engine.errors import EngineError
from engine.types import EngineRequest, Priority
from gateway.reaping import Reaper
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.fakes import Script, ScriptedEngine

ASKED = "What is the capital of France?"
REWORDED = "Could you please tell me what the capital of France is?"
FIRST = Script(steps=("It is", " Paris."))


def engine_that_says(later: Script) -> ScriptedEngine:
    """`FIRST` to the first request, `later` to those after it."""

    def script(_request: EngineRequest) -> Script:
        return FIRST if len(engine.requests) == 1 else later

    engine = ScriptedEngine(script)
    return engine


async def hit_once(gateway: Gateway) -> None:
    """An answer and a semantic hit on it, with all that follows in the background."""
    await gateway.chat(ASKED)
    await gateway.parts.background.drain(60)
    again = await gateway.chat(REWORDED)
    assert again.headers["x-weir-cache"].startswith("semantic")
    assert again.json()["choices"][0]["message"]["content"] == "It is Paris."
    await gateway.parts.background.drain(60)


async def estimate(gateway: Gateway, redis_url: str) -> ShadowEstimate:
    redis = Redis.from_url(redis_url)
    try:
        return await ShadowLog(RedisStore(redis)).estimate(gateway.tenant.id)
    finally:
        await redis.aclose()


@pytest.mark.parametrize(
    ("later", "wrong", "verdict"),
    [(FIRST, 0, "same"), (Script(steps=("No idea", " whatsoever, sorry")), 1, "wrong")],
)
async def test_a_sampled_hit_is_generated_again_and_compared(
    start_gateway: StartGateway, redis_url: str, later: Script, wrong: int, verdict: str
) -> None:
    gateway = await start_gateway(engine_that_says(later), cache_shadow_share=1.0)
    await hit_once(gateway)

    # it ran behind all other work, with the hit's own question
    assert len(gateway.engine.requests) == 2
    assert gateway.engine.requests[1].priority is Priority.BATCH
    found = await estimate(gateway, redis_url)
    assert (found.checked, found.wrong) == (1, wrong)
    assert f'gateway_cache_shadow_checks_total{{verdict="{verdict}"}} 1.0' in rendered(gateway)
    # and nobody was charged for it
    assert [row.kind for row in await gateway.ledger()] == ["usage", "cache_hit"]


async def test_nothing_is_generated_again_unless_asked_for(gateway: Gateway, redis_url: str) -> None:
    await gateway.chat(ASKED)
    await gateway.parts.background.drain(60)
    assert (await gateway.chat(REWORDED)).headers["x-weir-cache"].startswith("semantic")
    await gateway.parts.background.drain(60)

    assert len(gateway.engine.requests) == 1
    assert (await estimate(gateway, redis_url)).checked == 0


@pytest.mark.parametrize(
    "later",
    [Script(steps=("It",), fail_at=0, error=EngineError("gone")), Script(steps=("cut",) * 2000)],
    ids=["failed", "truncated"],
)
async def test_a_check_that_fails_is_no_verdict(start_gateway: StartGateway, redis_url: str, later: Script) -> None:
    gateway = await start_gateway(engine_that_says(later), cache_shadow_share=1.0)
    await hit_once(gateway)

    assert len(gateway.engine.requests) == 2
    assert (await estimate(gateway, redis_url)).checked == 0
    assert 'gateway_cache_shadow_checks_total{verdict="undecided"} 1.0' in rendered(gateway)


def rendered(gateway: Gateway) -> str:
    return gateway.parts.pipeline.metrics.render().decode()


async def test_expired_answers_leave_the_accounts_by_themselves(start_gateway: StartGateway, redis_url: str) -> None:
    # given an answer that lives a second, with a gateway that reaps as often
    gateway = await start_gateway(cache_ttl_s=1, cache_reap_interval_s=1)
    await gateway.chat(ASKED)
    await gateway.parts.background.drain(60)
    invalidator = gateway.parts.invalidator
    assert invalidator is not None
    assert (await invalidator.usage(gateway.tenant.id)).entries == 1
    # when its time is over, then nobody has to do anything
    async with asyncio.timeout(60):
        while (await invalidator.usage(gateway.tenant.id)).entries:  # noqa: ASYNC110 - the reaper works in Redis
            await asyncio.sleep(0.05)
    assert (await invalidator.usage(gateway.tenant.id)).size_bytes == 0


async def test_a_redis_that_is_away_does_not_end_the_reaper(caplog: pytest.LogCaptureFixture) -> None:
    redis = Redis(unix_socket_path="/nonexistent/valkey.sock")
    reaper = Reaper(Invalidator(RedisStore(redis)), embedder_fingerprint=None, interval_s=600)

    await reaper.reap()

    assert "was not reaped: ConnectionError" in caplog.text
    await redis.aclose()
