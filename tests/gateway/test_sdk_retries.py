"""The official SDKs wait as long as they are told, and do not try again what is useless."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable

import anthropic
import httpx2
import openai
import pytest

from engine.errors import QueueFull, RequestFailed
from engine.types import EngineRequest
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.fakes import Script, ScriptedEngine


async def _ask_openai(gateway: Gateway) -> str:
    transport = httpx2.ASGITransport(app=gateway.app)  # type: ignore[arg-type]
    async with openai.AsyncOpenAI(
        api_key=gateway.tenant.key,
        base_url="http://weir/v1",
        http_client=httpx2.AsyncClient(transport=transport),
        max_retries=3,
    ) as client:
        done = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    return done.choices[0].message.content or ""


async def _ask_anthropic(gateway: Gateway) -> str:
    transport = httpx2.ASGITransport(app=gateway.app)  # type: ignore[arg-type]
    async with anthropic.AsyncAnthropic(
        api_key=gateway.tenant.key,
        base_url="http://weir",
        http_client=httpx2.AsyncClient(transport=transport),
        max_retries=3,
    ) as client:
        done = await client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
    block = done.content[0]
    assert block.type == "text"
    return block.text


ASK = pytest.mark.parametrize("ask", [_ask_openai, _ask_anthropic])
Ask = Callable[[Gateway], Awaitable[str]]


@ASK
async def test_a_full_queue_is_tried_again_after_the_time_that_was_named(start_gateway: StartGateway, ask: Ask) -> None:
    moments: list[float] = []

    def choose(_: EngineRequest) -> Script:
        moments.append(time.monotonic())
        return Script(fail_at=0, error=QueueFull("full", retry_after_s=0.2)) if len(moments) < 3 else Script()

    gateway = await start_gateway(ScriptedEngine(choose))

    assert await ask(gateway) == "Hello world"

    waits = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert len(waits) == 2
    assert all(0.2 <= wait < 60 for wait in waits)


@ASK
async def test_a_used_up_budget_is_not_tried_again(start_gateway: StartGateway, ask: Ask) -> None:
    gateway = await start_gateway()
    await gateway.set_limit(gateway.tenant, "budget_day", hard=1)

    with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as caught:
        await ask(gateway)

    assert caught.value.response.headers["x-should-retry"] == "false"
    assert gateway.engine.requests == []


@ASK
async def test_a_poisoned_prompt_costs_one_failure(start_gateway: StartGateway, ask: Ask) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(fail_at=0, error=RequestFailed("NaN"))))

    with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)):
        await ask(gateway)

    assert len(gateway.engine.requests) == 1
