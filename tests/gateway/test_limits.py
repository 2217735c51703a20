"""Limits, budgets and the ledger over HTTP: what is refused, how, and what it cost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from billing.limits.stage import ADMIT, HOLD, SETTLE
from billing.limits.stage import Script as LuaScript
from billing.tables import EntryStatus
from billing.trips import Command
from engine.types import EngineRequest
from tests.billing.support import ValkeyProcess
from tests.gateway.conftest import INPUT_NANO, OUTPUT_NANO, Gateway, StartGateway, frames, until
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.raw_asgi import RawExchange
from tests.gateway.test_upstreams import set_route


def price_of(prompt_tokens: int, output_tokens: int) -> int:
    """Nano-USD, worked out by hand; the test's prices divide without a rest."""
    return (prompt_tokens * INPUT_NANO + output_tokens * OUTPUT_NANO) // 1_000_000


async def test_each_answer_is_one_row_at_its_price(gateway: Gateway) -> None:
    response = await gateway.chat("hello")

    [row] = await gateway.ledger()
    usage = response.json()["usage"]
    assert (row.input_tokens, row.output_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert row.amount_nano_usd == price_of(usage["prompt_tokens"], 2)
    assert (row.status, row.finish_reason, row.endpoint) == (EntryStatus.OK, "stop", "chat.completions")
    assert (row.model, row.upstream, row.engine_us) == ("m", "local", 1000)
    assert row.request_id == response.headers["x-request-id"]
    assert 0 < row.ttft_us <= row.latency_us  # type: ignore[operator]


async def test_dimensions_are_booked_and_decide_nothing(gateway: Gateway) -> None:
    await gateway.post(
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "user": "u-1",
            "metadata": {"conversation_id": "from-metadata"},
        },
        x_weir_conversation="c-9",
        x_weir_tags="team=search, env=prod",
    )

    [row] = await gateway.ledger()
    assert (row.end_user, row.conversation_id, row.conversation_source) == ("u-1", "c-9", "header")
    assert row.tags == {"team": "search", "env": "prod"}
    assert row.tenant_id == gateway.tenant.id


async def test_a_growing_conversation_keeps_its_id(gateway: Gateway) -> None:
    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    for messages in (first, [*first, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "more"}]):
        await gateway.post("/v1/chat/completions", {"model": "m", "messages": messages})

    one, two = await gateway.ledger()
    assert one.conversation_id == two.conversation_id
    assert one.conversation_source == "hash"


async def test_requests_per_minute_refuse_the_fourth_with_retry_after(gateway: Gateway) -> None:
    await gateway.set_limit(gateway.tenant, "rpm", 3)
    answers = [await gateway.chat(f"question {number}") for number in range(4)]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    error = answers[3].json()["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert 1 <= int(answers[3].headers["retry-after"]) <= 60
    assert int(answers[3].headers["retry-after-ms"]) > 0
    assert answers[3].headers["x-weir-limit"] == "tenant:rpm"
    assert answers[0].headers["x-ratelimit-limit-requests"] == "3"
    assert answers[2].headers["x-ratelimit-remaining-requests"] == "0"
    assert answers[0].headers["x-ratelimit-reset-requests"].endswith("s")
    assert len(await gateway.ledger()) == 3


async def test_one_of_five_parallel_requests_fits_the_tokens_per_minute(gateway: Gateway) -> None:
    await gateway.set_limit(gateway.tenant, "tpm", 100)
    gateway.engine.gate.clear()  # nobody is through, and gives tokens back, before the last has asked

    calls = [asyncio.create_task(gateway.complete(f"prompt {n}", max_tokens=60)) for n in range(5)]
    await until(lambda: sum(call.done() for call in calls) == 4)
    gateway.engine.gate.set()
    answers = await asyncio.gather(*calls)

    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200, 429, 429, 429, 429]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["type"] == "tokens"
    assert "retry-after" in refused.headers


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
async def test_a_request_that_names_no_output_takes_the_routes_default_from_the_tokens_per_minute(
    start_gateway: StartGateway, path: str, text: dict[str, Any]
) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(steps=("x ",) * 200)), cache_enabled=False)
    await gateway.set_limit(gateway.tenant, "tpm", 200)
    principal = await gateway.parts.billing.auth.authenticate(gateway.tenant.key)
    # without one it is what the context leaves, more than the limit ever has
    assert (await gateway.post(path, {"model": "m", **text})).status_code == 413
    await set_route(gateway, "m", "local/m", default_max_tokens=100)
    await until(lambda: gateway.parts.router.resolve("m", principal).default_max_tokens == 100)
    # when two ask at once with a default of 100, then one fits
    gateway.engine.gate.clear()
    calls = [asyncio.create_task(gateway.post(path, {"model": "m", **text})) for _ in range(2)]
    await until(lambda: sum(call.done() for call in calls) == 1)
    gateway.engine.gate.set()
    answers = sorted(await asyncio.gather(*calls), key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].headers["x-weir-limit"] == "tenant:tpm"
    # and it has no more than the default, so that no limit is passed
    [row] = await gateway.ledger()
    assert row.output_tokens == 100
    # what a request does name stands
    await gateway.set_limit(gateway.tenant, "tpm", 100_000)
    await gateway.post(path, {"model": "m", "max_tokens": 120, "max_output_tokens": 120, **text})
    assert (await gateway.ledger())[-1].output_tokens == 120


async def test_unused_tokens_are_given_back(gateway: Gateway) -> None:
    await gateway.set_limit(gateway.tenant, "tpm", 200)

    for number in range(4):  # each asks for 100 and uses about 10
        answer = await gateway.complete(f"p{number}", max_tokens=100)
        assert answer.status_code == 200, answer.text
        await gateway.parts.background.drain(60)


async def test_a_request_larger_than_the_limit_says_so_and_is_not_to_be_retried(gateway: Gateway) -> None:
    await gateway.set_limit(gateway.tenant, "max_tokens_per_request", 10)

    answer = await gateway.complete("a prompt", max_tokens=60)

    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert answer.headers["x-should-retry"] == "false"


async def test_a_budget_of_one_answer_refuses_the_second_as_insufficient_quota(gateway: Gateway) -> None:
    # A hold is one nano-USD dearer than the charge: cached and fresh prompt tokens may round apart.
    await gateway.set_limit(gateway.tenant, "budget_month", price_of(6, 2) + 1)
    first = await gateway.complete("first ", max_tokens=2)
    await gateway.parts.background.drain(60)

    second = await gateway.complete("second", max_tokens=2)

    assert first.status_code == 200, first.text
    assert second.status_code == 429
    error = second.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert second.headers["x-should-retry"] == "false"
    assert int(second.headers["retry-after"]) > 0
    assert "usd" not in second.text.lower()
    [row] = await gateway.ledger()
    assert row.amount_nano_usd == price_of(6, 2)


async def test_concurrent_requests_never_pass_a_budget(gateway: Gateway) -> None:
    budget = price_of(30, 12) + 6  # six answers, each held one nano-USD dearer than it is charged
    await gateway.set_limit(gateway.tenant, "budget_day", budget)

    answers = await asyncio.gather(*(gateway.complete(f"p{n:04}", max_tokens=2) for n in range(50)))

    rows = await gateway.ledger()
    served = sum(answer.status_code == 200 for answer in answers)
    assert served == len(rows) == 6
    assert sum(row.amount_nano_usd for row in rows) <= budget


async def test_a_stream_is_cut_at_the_last_granted_token_with_the_reason(start_gateway: StartGateway) -> None:
    def script(request: EngineRequest) -> Script:
        return Script(steps=tuple("x" for _ in range(900)))

    gateway = await start_gateway(ScriptedEngine(script), cache_enabled=False)
    await gateway.set_limit(gateway.tenant, "budget_day", price_of(1, 300) + 1)

    answer = await gateway.complete("p", max_tokens=900, stream=True)

    chunks = frames(answer)
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    last = chunks[-1]
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["weir"] == {"truncated_reason": "budget"}
    [row] = await gateway.ledger()
    assert (row.status, row.output_tokens, text) == (EntryStatus.BUDGET_CUT, 300, "x" * 300)
    assert row.amount_nano_usd == price_of(1, 300)
    assert len(gateway.engine.aborted) == 1


async def test_a_refused_hold_gives_back_the_request(gateway: Gateway) -> None:
    await gateway.set_limit(gateway.tenant, "rpm", 2)
    await gateway.set_limit(gateway.tenant, "tpm", 50)

    for _ in range(5):
        refused = await gateway.complete("p", max_tokens=60)
        assert refused.status_code == 413 or refused.json()["error"]["type"] == "tokens"
    assert (await gateway.complete("p", max_tokens=5)).status_code == 200


async def test_an_unpriced_model_is_refused_never_free(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(name="unpriced")
    from tests.gateway.fakes import text_model

    gateway = await start_gateway(engine, text_model=text_model("unpriced"))

    answer = await gateway.chat(model="unpriced")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unknown_price"
    assert gateway.engine.requests == []


async def test_concurrency_is_freed_after_every_ending(gateway: Gateway) -> None:
    await gateway.set_limit(gateway.tenant, "concurrency", 1)

    for content in ("one", "one", "two"):  # a miss, a hit, another miss
        assert (await gateway.chat(content)).status_code == 200
    assert (await gateway.chat("x" * 1100)).status_code == 400
    assert (await gateway.chat("three")).status_code == 200


async def test_who_asks_again_before_the_last_slot_is_given_back_waits_for_it(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.set_limit(gateway.tenant, "concurrency", 1)
    trips, refused, may_settle = gateway.parts.billing.admission.trips, asyncio.Event(), asyncio.Event()
    execute = trips.execute

    async def late(commands: Sequence[Command], *, deadline_s: float) -> tuple[list[Any], float]:
        if SETTLE.sha in commands[0]:
            await may_settle.wait()
        replies, used_s = await execute(commands, deadline_s=deadline_s)
        if ADMIT.sha in commands[0] and replies[0][0] == 0:
            refused.set()
            may_settle.set()
        return replies, used_s

    monkeypatch.setattr(trips, "execute", late)
    assert (await gateway.chat("one")).status_code == 200
    assert (await gateway.chat("two")).status_code == 200
    assert refused.is_set()
    await gateway.parts.background.drain(60)
    assert gateway.parts.pipeline.governor._leaving == {}


# -- the cache


@pytest.mark.parametrize("script", [ADMIT, HOLD], ids=["admit", "hold"])
async def test_a_client_that_leaves_before_its_trip_is_answered_holds_up_no_slot_and_no_money(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, script: LuaScript
) -> None:
    await gateway.set_limit(gateway.tenant, "concurrency", 1)
    await gateway.set_limit(gateway.tenant, "budget_month", 10**12)
    assert (await gateway.chat("seeds the budget")).status_code == 200
    await gateway.parts.background.drain(60)
    admission, made = gateway.parts.billing.admission, asyncio.Event()
    execute = admission.trips.execute

    async def unheard(commands: Sequence[Command], *, deadline_s: float) -> tuple[list[Any], float]:
        result = await execute(commands, deadline_s=deadline_s)
        if script.sha in commands[0]:
            made.set()
            await asyncio.Event().wait()
        return result

    body = {"model": "m", "messages": [{"role": "user", "content": "and leaves"}]}
    with monkeypatch.context() as patched:
        patched.setattr(admission.trips, "execute", unheard)
        async with RawExchange(gateway, "POST", "/v1/chat/completions", body) as client:
            await asyncio.wait_for(made.wait(), 60)
            client.leave()
            await client.finished()
    assert admission.num_live == 0
    assert (await gateway.chat("comes next")).status_code == 200
    await gateway.parts.background.drain(60)
    redis = gateway.parts.billing.redis
    (key,) = [key async for key in redis.scan_iter(match="*:b:budget_month:*")]
    used, held = await redis.hmget(key, ["used", "held"])
    assert (int(used), int(held)) == (sum(row.amount_nano_usd for row in await gateway.ledger()), 0)


async def test_the_second_asking_is_a_hit_that_costs_nothing(gateway: Gateway) -> None:
    first = await gateway.chat("capital of France?")
    await gateway.parts.background.drain(60)
    second = await gateway.chat("capital of France?")

    assert first.headers["x-weir-cache"].startswith("miss")
    assert second.headers["x-weir-cache"].startswith("hit; age=")
    assert second.json()["choices"] == first.json()["choices"]
    assert second.json()["id"] != first.json()["id"]
    paid, hit = await gateway.ledger()
    assert (hit.kind, hit.amount_nano_usd, hit.output_tokens, hit.cache_outcome) == ("cache_hit", 0, 0, "exact")
    assert hit.saved_nano_usd == paid.amount_nano_usd
    assert (hit.saved_input_tokens, hit.saved_output_tokens) == (paid.input_tokens, paid.output_tokens)


async def test_a_hit_streams_too(gateway: Gateway) -> None:
    plain = await gateway.chat("stream me")
    await gateway.parts.background.drain(60)
    response = await gateway.chat("stream me", stream=True, stream_options={"include_usage": True})

    chunks = frames(response)
    assert response.headers["x-weir-cache"].startswith("hit; age=")
    text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    assert text == plain.json()["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == plain.json()["usage"]


async def test_a_paraphrase_is_a_semantic_hit(gateway: Gateway) -> None:
    await gateway.chat("What is the capital of France?")
    await gateway.parts.background.drain(60)

    again = await gateway.chat("what is the capital of France")

    assert again.headers["x-weir-cache"].startswith("semantic; similarity=0.99")


async def test_another_tenant_never_hits(gateway: Gateway) -> None:
    other = await gateway.add_tenant("globex")
    await gateway.chat("shared question")
    await gateway.parts.background.drain(60)

    response = await gateway.chat("shared question", tenant=other)

    assert response.headers["x-weir-cache"].startswith("miss")
    assert len(gateway.engine.requests) == 2
    assert gateway.engine.requests[0].cache_salt != gateway.engine.requests[1].cache_salt


async def test_no_store_and_no_cache_are_obeyed(gateway: Gateway) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "private"}]}
    await gateway.post("/v1/chat/completions", body, cache_control="no-store")
    await gateway.parts.background.drain(60)
    second = await gateway.post("/v1/chat/completions", body)
    await gateway.parts.background.drain(60)
    refreshed = await gateway.post("/v1/chat/completions", body, cache_control="no-cache")

    assert second.headers["x-weir-cache"].startswith("miss")
    assert refreshed.headers["x-weir-cache"].startswith("bypass; reason=no-cache")
    assert len(gateway.engine.requests) == 3


async def test_scripts_forgotten_between_any_two_commands_lose_no_money_and_no_answer(
    gateway: Gateway, valkey: ValkeyProcess
) -> None:
    await gateway.set_limit(gateway.tenant, "budget_month", 10**15)
    redis = Redis(unix_socket_path=valkey.socket)
    over = False

    async def forget() -> None:
        while not over:  # not until it is cancelled: on Python 3.11 this client may lose that
            await redis.script_flush()

    forgetting = asyncio.create_task(forget())
    answers = []
    for number in range(8):
        questions = (f"what is the capital of country {number} of group {group}?" for group in (0, 1, 2, 0, 1, 2))
        answers += await asyncio.gather(*map(gateway.chat, questions))
        await gateway.parts.background.drain(60)
    again = await gateway.chat("what is the capital of country 7 of group 0?")
    over = True
    await forgetting
    booked = sum(row.amount_nano_usd for row in await gateway.ledger())
    counters = [
        await redis.hmget(key, "used", "held") async for key in redis.scan_iter("*:b:budget_month:*", _type="HASH")
    ]
    await redis.aclose()

    assert {answer.status_code for answer in answers} == {200}
    assert again.headers["x-weir-cache"].startswith("hit")
    assert counters == [[str(booked).encode(), b"0"]]
    assert booked > 0
