"""A follower's stream after its leader failed: it goes on behind what was shown, or it ends with an error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from billing import tenants
from billing.limits.stage import UNHOLD
from billing.tables import EntryStatus
from billing.trips import Command
from engine.errors import EngineUnavailable
from gateway.calls import Piece, ToolCallPiece
from gateway.splicing import Diverged, Shown
from tests.gateway.conftest import OPERATOR, Gateway, StartGateway, frames, until
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.raw_asgi import RawExchange
from tests.gateway.test_flights import STEPS, watching

QUESTION = "What does the weir hold back?"
DYING = Script(steps=STEPS, gate_at=2, fail_at=2, error=EngineUnavailable("gone"))


async def gateway_that_dies_once(start_gateway: StartGateway, then: Script, **settings: Any) -> Gateway:
    """Its first generation waits before its third token and fails there; every other one is `then`."""
    scripts: Iterator[Script] = iter([DYING])
    engine = ScriptedEngine(lambda _request: next(scripts, then))
    engine.gate.clear()
    return await start_gateway(engine, **settings)


async def followed(gateway: Gateway, **fields: Any) -> tuple[httpx.Response, httpx.Response]:
    """Leader and follower, both streams, of a generation that fails after two tokens."""
    first = asyncio.create_task(gateway.chat(QUESTION, stream=True, **fields))
    await asyncio.wait_for(gateway.engine.stepped.wait(), 60)
    second = asyncio.create_task(gateway.chat(QUESTION, stream=True, **fields))
    await until(lambda: watching(gateway) == 2)
    gateway.engine.gate.set()
    return await asyncio.wait_for(asyncio.gather(first, second), 60)


def text_of(answer: httpx.Response) -> str:
    return "".join(
        choice["delta"].get("content") or "" for chunk in frames(answer) for choice in chunk.get("choices", [])
    )


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"seed": 7}], ids=["greedy", "seeded"])
async def test_a_repeatable_stream_goes_on_behind_what_was_shown(
    start_gateway: StartGateway, fields: dict[str, Any]
) -> None:
    # given a leader that fails after two tokens were shown to a follower
    gateway = await gateway_that_dies_once(start_gateway, Script(steps=STEPS))
    led, followed_by = await followed(gateway, **fields)
    # then the leader's stream ends with an error, and the follower's has every token once and a proper end
    assert "error" in led.text
    assert text_of(followed_by) == "".join(STEPS)
    assert frames(followed_by)[-1]["choices"][0]["finish_reason"] == "stop"
    assert len(gateway.engine.requests) == 2
    # and the follower has paid for its own generation: no hit is booked
    rows = await gateway.ledger()
    assert sorted((row.kind, row.status) for row in rows) == [
        ("usage", EntryStatus.FAILED),
        ("usage", EntryStatus.OK),
    ]
    assert next(row for row in rows if row.status == EntryStatus.OK).cache_outcome == "miss"


async def test_a_stream_that_follows_another_gateway_goes_on_too(start_gateway: StartGateway, redis_url: str) -> None:
    # given a generation on one gateway that fails after two tokens were shown to a follower on another
    one = await gateway_that_dies_once(start_gateway, Script(steps=STEPS), replicas=2)
    two = await start_gateway(ScriptedEngine(Script(steps=STEPS)), replicas=2)
    first = asyncio.create_task(one.chat(QUESTION, stream=True, temperature=0))
    await asyncio.wait_for(one.engine.stepped.wait(), 60)
    body = {"model": "m", "stream": True, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
    async with RawExchange(two, "POST", "/v1/chat/completions", body) as follower:
        await follower.start()
        shown = b""
        while b"w1" not in shown:
            shown += await follower.chunk()
        one.engine.gate.set()
        while b"[DONE]" not in shown:
            shown += await follower.chunk()
    assert "error" in (await asyncio.wait_for(first, 60)).text
    # then it goes on behind them, generated and paid for by its own gateway
    assert [shown.count(step.encode()) for step in STEPS] == [1] * len(STEPS)
    assert b"error" not in shown
    assert [(row.kind, row.status) for row in await two.ledger()] == [("usage", EntryStatus.OK)]


async def test_a_stream_that_is_not_repeatable_ends_with_an_error(start_gateway: StartGateway) -> None:
    gateway = await gateway_that_dies_once(start_gateway, Script(steps=STEPS))
    _, followed_by = await followed(gateway, temperature=0.7)
    assert "upstream_unavailable" in followed_by.text
    assert len(gateway.engine.requests) == 1
    assert [row.status for row in await gateway.ledger()] == [EntryStatus.FAILED]


async def test_a_second_generation_that_says_otherwise_is_not_sewn_on(start_gateway: StartGateway) -> None:
    other = Script(steps=(STEPS[0], "other ", *STEPS[2:]))
    gateway = await gateway_that_dies_once(start_gateway, other)
    _, followed_by = await followed(gateway, temperature=0)
    said = followed_by.text
    assert "upstream_unavailable" in said
    assert "other" not in said
    assert [row.status for row in await gateway.ledger()] == [EntryStatus.FAILED] * 2


async def test_a_second_generation_that_ends_before_what_was_shown_has_failed(start_gateway: StartGateway) -> None:
    # given a second generation that ends in good order, after half of what a follower was shown
    gateway = await gateway_that_dies_once(start_gateway, Script(steps=STEPS[:1]))
    _, followed_by = await followed(gateway, temperature=0)
    # then its stream ends with an error, and its row says so; nothing of it is remembered
    assert "upstream_unavailable" in followed_by.text
    assert [(row.status, row.output_tokens) for row in await gateway.ledger()] == [
        (EntryStatus.FAILED, 2),
        (EntryStatus.FAILED, 1),
    ]
    again = await gateway.chat(QUESTION, temperature=0)
    assert again.headers["x-weir-cache"].startswith("miss")


async def test_a_priced_followers_hold_becomes_that_of_its_own_generation(start_gateway: StartGateway) -> None:
    # given hits at half price and a budget
    gateway = await gateway_that_dies_once(start_gateway, Script(steps=STEPS))
    async with gateway.parts.billing.db.begin() as session:
        await tenants.update_tenant(session, OPERATOR, gateway.tenant.id, cache_policy={"hit_price": "50%"})
    await gateway.set_limit(gateway.tenant, "budget_month", 10**12)
    _, followed_by = await followed(gateway, temperature=0)
    assert text_of(followed_by) == "".join(STEPS)
    # then both generations are paid in full, no hit is, and nothing stays held
    rows = await gateway.ledger()
    assert [row.kind for row in rows] == ["usage", "usage"]
    redis = gateway.parts.billing.redis
    (key,) = [key async for key in redis.scan_iter(match="*:b:budget_month:*")]
    used, held = await redis.hmget(key, ["used", "held"])
    assert (int(used), int(held)) == (sum(row.amount_nano_usd for row in rows), 0)


async def test_a_follower_that_leaves_while_its_hold_goes_back_is_charged_for_what_it_saw(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a follower of a failed generation whose hold Redis has given back without its hearing of it yet
    gateway = await gateway_that_dies_once(start_gateway, Script(steps=STEPS))
    async with gateway.parts.billing.db.begin() as session:
        await tenants.update_tenant(session, OPERATOR, gateway.tenant.id, cache_policy={"hit_price": "50%"})
    await gateway.set_limit(gateway.tenant, "budget_month", 10**12)
    admission, given_back = gateway.parts.billing.admission, asyncio.Event()
    execute = admission.trips.execute

    async def unheard(commands: Sequence[Command], *, deadline_s: float) -> tuple[list[Any], float]:
        result = await execute(commands, deadline_s=deadline_s)
        if UNHOLD.sha in commands[0]:
            given_back.set()
            await asyncio.Event().wait()
        return result

    monkeypatch.setattr(admission.trips, "execute", unheard)
    body = {"model": "m", "messages": [{"role": "user", "content": QUESTION}], "stream": True, "temperature": 0}
    async with (
        RawExchange(gateway, "POST", "/v1/chat/completions", body) as leader,
        RawExchange(gateway, "POST", "/v1/chat/completions", body) as follower,
    ):
        await leader.start()
        await follower.start()
        await until(lambda: watching(gateway) == 2)
        gateway.engine.gate.set()
        await asyncio.wait_for(given_back.wait(), 60)
        # when it leaves
        follower.leave()
        await follower.finished()
    await gateway.parts.background.drain(60)
    # then its row is of what it saw, and nothing stays held or live
    (hit,) = [row for row in await gateway.ledger() if row.kind == "cache_hit"]
    assert hit.status is EntryStatus.CLIENT_DISCONNECT
    assert hit.amount_nano_usd > 0
    assert admission.num_live == 0
    (key,) = [key async for key in gateway.parts.billing.redis.scan_iter(match="*:b:budget_month:*")]
    used, held = await gateway.parts.billing.redis.hmget(key, ["used", "held"])
    assert (int(used), int(held)) == (sum(row.amount_nano_usd for row in await gateway.ledger()), 0)


async def test_a_follower_counts_as_one_lookup(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(Script(steps=STEPS, gate_at=2))
    engine.gate.clear()
    gateway = await start_gateway(engine)
    calls = [asyncio.create_task(gateway.chat(QUESTION, stream=stream)) for stream in (False, True, False)]
    await until(lambda: watching(gateway) == 3)
    engine.gate.set()
    await asyncio.wait_for(asyncio.gather(*calls), 60)
    await gateway.chat(QUESTION)
    text = (await gateway.client.get("/metrics")).text
    counted = {
        (sample.labels["outcome"], sample.labels["reason"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gateway_cache_lookups_total" and sample.value
    }
    assert counted == {("miss", "similarity"): 1, ("hit", "flight"): 2, ("hit", "none"): 1}


def shown(*pieces: Piece) -> Shown:
    made = Shown()
    made.add(list(pieces))
    return made


def test_pieces_are_cut_at_any_place_by_choice_and_channel() -> None:
    seen = shown(
        Piece(index=0, reasoning="let me "), Piece(index=1, text="Bon"), Piece(index=0, reasoning="see", text="Hel")
    )
    again = [
        Piece(index=1, text="B"),
        Piece(index=0, reasoning="let me see"),
        Piece(index=0, text="He"),
        Piece(index=1, text="onjour", finish_reason="stop"),
        Piece(index=0, text="llo"),
        Piece(index=0, finish_reason="stop"),
    ]
    fresh = [piece for each in again for piece in seen.beyond([each])]
    assert [(piece.index, piece.text, piece.finish_reason) for piece in fresh] == [
        (1, "jour", "stop"),
        (0, "lo", None),
        (0, "", "stop"),
    ]


@pytest.mark.parametrize(
    "again",
    [
        Piece(index=0, text="Help"),
        Piece(index=0, text="Hel", finish_reason="stop"),
        Piece(index=0, finish_reason="stop"),
        Piece(index=0, reasoning="hm", text="Hello"),
        Piece(index=0, text="hello"),
    ],
)
def test_whatever_differs_from_what_was_shown_diverges(again: Piece) -> None:
    seen = shown(Piece(index=0, reasoning="hmm"), Piece(index=0, text="Hello"))
    if not again.reasoning:
        assert seen.beyond([Piece(index=0, reasoning="hmm")]) == []
    with pytest.raises(Diverged):
        seen.beyond([again])


def test_tool_calls_are_not_sewn_on() -> None:
    seen = shown(Piece(index=0, tool_calls=[ToolCallPiece(index=0, id="call_1", name="f", arguments="{")]))
    assert not seen.can_go_on(None)  # type: ignore[arg-type]
