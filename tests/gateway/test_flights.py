"""The same question at once: one generation, everyone answered, a row each; in one gateway and across two."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis

from billing import keys
from billing.limits import rules
from billing.tables import EntryStatus
from engine.errors import EngineUnavailable
from engine.types import EngineRequest, TokenLogprob
from gateway.calls import Counts, Piece, ToolCallPiece
from gateway.flights import Served, _decoder, _encoder
from tests.gateway.conftest import OPERATOR, Gateway, StartGateway, Tenant, frames, until
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.raw_asgi import RawExchange
from tests.gateway.test_limits import price_of

QUESTION = "What does the weir hold back?"
STEPS = tuple(f"w{number} " for number in range(6))


async def followed(redis_url: str) -> None:
    """Waits until another gateway follows a generation."""
    redis = Redis.from_url(redis_url)
    async with asyncio.timeout(60):
        while not [key async for key in redis.scan_iter("weir:cache:*:f:*:w")]:
            pass
    await redis.aclose()


def watching(gateway: Gateway) -> int:
    """Requests of this gateway that lead or follow."""
    flights = gateway.parts.pipeline.flights
    assert flights is not None
    return sum(generation.num_seats for generation in flights._local._running.values())


async def key_beside_one_with_budget(gateway: Gateway, budget_nano: int) -> Tenant:
    """Another key of the test tenant's project; the tenant's first key gets the budget of a day."""
    tenant, billing = gateway.tenant, gateway.parts.billing
    async with billing.db.begin() as session:
        made = await keys.create_key(session, OPERATOR, billing.secret, tenant.project_id, name="rich")
        await rules.set_limit(
            session, OPERATOR, scope_kind="key", scope_id=tenant.key_id, quota="budget_day", hard=budget_nano
        )
    return Tenant(tenant.id, tenant.project_id, made.key.id, made.plaintext)


@pytest.fixture
async def two_gateways(start_gateway: StartGateway) -> tuple[Gateway, Gateway]:
    """Two on one Redis, with engines and books of their own; generations wait before their third token."""

    async def one() -> Gateway:
        engine = ScriptedEngine(Script(steps=STEPS, gate_at=2))
        engine.gate.clear()
        return await start_gateway(engine, replicas=2)

    return await one(), await one()


async def test_two_gateways_make_one_generation_of_one_question(
    two_gateways: tuple[Gateway, Gateway], redis_url: str
) -> None:
    one, two = two_gateways
    # given a generation that runs on the first
    first = asyncio.create_task(one.chat(QUESTION))
    await asyncio.wait_for(one.engine.stepped.wait(), 60)
    # when the second is asked the same, as a stream
    second = asyncio.create_task(two.chat(QUESTION, stream=True, stream_options={"include_usage": True}))
    await followed(redis_url)
    one.engine.gate.set()
    answers = await asyncio.wait_for(asyncio.gather(first, second), 60)
    # then both have the answer of one generation
    chunks = frames(answers[1])
    text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    assert text == answers[0].json()["choices"][0]["message"]["content"] == "".join(STEPS)
    assert chunks[-1]["usage"] == answers[0].json()["usage"]
    assert (len(one.engine.requests), len(two.engine.requests)) == (1, 0)
    assert answers[0].headers["x-weir-cache"].startswith("miss")
    assert answers[1].headers["x-weir-cache"] == "hit; reason=flight"
    # and the books hold one row that is paid and one that was saved
    [paid], [saved] = await one.ledger(), await two.ledger()
    assert (paid.kind, saved.kind, saved.cache_outcome) == ("usage", "cache_hit", "single_flight")
    assert (saved.amount_nano_usd, saved.input_tokens, saved.output_tokens) == (0, 0, 0)
    assert saved.saved_nano_usd == paid.amount_nano_usd > 0
    assert (saved.saved_input_tokens, saved.saved_output_tokens) == (paid.input_tokens, paid.output_tokens)


async def test_a_generation_whose_asker_left_goes_on_for_a_follower_elsewhere(
    two_gateways: tuple[Gateway, Gateway], redis_url: str
) -> None:
    one, two = two_gateways
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": QUESTION}]}
    async with (
        RawExchange(one, "POST", "/v1/chat/completions", body) as leader,
        RawExchange(two, "POST", "/v1/chat/completions", body) as follower,
    ):
        await leader.start()
        # given a follower that sees the first tokens while the generation waits
        await follower.start()
        assert b'"role":"assistant"' in await follower.chunk()
        assert b"w0" in await follower.chunk()
        # when the one who asked first leaves
        leader.leave()
        await leader.finished()
        one.engine.gate.set()
        rest = b""
        while b"[DONE]" not in rest:
            rest += await follower.chunk()
    # then the follower has the whole answer, and the books say who paid
    assert b"w5" in rest
    assert one.engine.aborted == []
    assert two.engine.requests == []
    assert [row.kind for row in await one.ledger() + await two.ledger()] == ["usage", "cache_hit"]


async def test_where_the_leader_fails_each_follower_is_answered_on_its_own(
    start_gateway: StartGateway, redis_url: str
) -> None:
    # given a first gateway whose engine dies before its first token, and a second that follows it
    def dies(_request: EngineRequest) -> Script:
        return Script(gate_at=0, fail_at=0, error=EngineUnavailable("gone"))

    failing = ScriptedEngine(dies)
    failing.gate.clear()
    one, two = await start_gateway(failing, replicas=2), await start_gateway(replicas=2)
    first = asyncio.create_task(one.chat(QUESTION))
    await until(lambda: len(failing.requests) == 1)
    second = asyncio.create_task(two.chat(QUESTION))
    await followed(redis_url)
    assert two.engine.requests == []
    # when it fails
    failing.gate.set()
    failed, answered = await asyncio.wait_for(asyncio.gather(first, second), 60)
    # then the follower generates itself, and pays
    assert failed.status_code >= 500
    assert answered.status_code == 200
    assert answered.headers["x-weir-cache"].startswith("miss")
    assert [row.kind for row in await two.ledger()] == ["usage"]


async def test_an_answer_that_must_not_be_stored_is_in_no_stream(
    two_gateways: tuple[Gateway, Gateway], redis_url: str
) -> None:
    one, _ = two_gateways
    body = {"model": "m", "messages": [{"role": "user", "content": QUESTION}]}
    one.engine.gate.set()
    answered = await one.post("/v1/chat/completions", body, cache_control="no-store")
    assert answered.status_code == 200
    redis = Redis.from_url(redis_url)
    assert [key async for key in redis.scan_iter("weir:cache:*")] == []
    await redis.aclose()


async def test_a_gateway_that_is_alone_asks_redis_for_no_flight(start_gateway: StartGateway, redis_url: str) -> None:
    engine = ScriptedEngine(Script(steps=STEPS, gate_at=2))
    engine.gate.clear()
    gateway = await start_gateway(engine)
    both = [asyncio.create_task(gateway.chat(QUESTION)) for _ in range(2)]
    await asyncio.wait_for(engine.stepped.wait(), 60)
    redis = Redis.from_url(redis_url)
    assert [key async for key in redis.scan_iter("weir:cache:*:f:*")] == []
    await redis.aclose()
    engine.gate.set()
    await asyncio.wait_for(asyncio.gather(*both), 60)
    assert len(engine.requests) == 1
    assert sorted(row.kind for row in await gateway.ledger()) == ["cache_hit", "usage"]


async def test_a_leaders_own_deadline_ends_no_other_request(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(Script(steps=STEPS, gate_at=2))
    engine.gate.clear()
    gateway = await start_gateway(engine)
    body = {"model": "m", "messages": [{"role": "user", "content": QUESTION}]}
    # given a generation under its caller's own deadline, and the same question without one while it runs
    hurried = asyncio.create_task(gateway.post("/v1/chat/completions", body, x_weir_timeout="0.3"))
    await until(lambda: len(engine.requests) == 1)
    patient = asyncio.create_task(gateway.chat(QUESTION))
    # when the deadline passes
    timed_out = await asyncio.wait_for(hurried, 60)
    engine.gate.set()
    answered = await asyncio.wait_for(patient, 60)
    # then it has ended the request that set it, and no other
    assert timed_out.status_code == 408
    assert answered.json()["choices"][0]["message"]["content"] == "".join(STEPS)
    assert answered.headers["x-weir-cache"].startswith("miss")
    assert sorted(row.status for row in await gateway.ledger()) == ["ok", "timeout"]


async def test_a_followers_own_deadline_holds_while_the_other_goes_on(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(Script(steps=STEPS, gate_at=2))
    engine.gate.clear()
    gateway = await start_gateway(engine)
    body = {"model": "m", "messages": [{"role": "user", "content": QUESTION}]}
    patient = asyncio.create_task(gateway.chat(QUESTION))
    await until(lambda: len(engine.requests) == 1)
    timed_out = await asyncio.wait_for(gateway.post("/v1/chat/completions", body, x_weir_timeout="0.2"), 60)
    assert timed_out.status_code == 408
    engine.gate.set()
    assert (await asyncio.wait_for(patient, 60)).status_code == 200


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_plain_follower_of_a_generation_that_fails_midway_generates_for_itself(
    start_gateway: StartGateway, replicas: int, redis_url: str
) -> None:
    # given a generation that dies after its second token, and a plain follower of it
    scripts = iter([Script(steps=STEPS, gate_at=2, fail_at=2, error=EngineUnavailable("gone"))])
    engine = ScriptedEngine(lambda _request: next(scripts, Script(steps=STEPS)))
    engine.gate.clear()
    one = await start_gateway(engine, replicas=replicas)
    two = one if replicas == 1 else await start_gateway(ScriptedEngine(Script(steps=STEPS)), replicas=2)
    first = asyncio.create_task(one.chat(QUESTION))
    await asyncio.wait_for(engine.stepped.wait(), 60)
    second = asyncio.create_task(two.chat(QUESTION))
    if replicas == 1:
        await until(lambda: watching(one) == 2)
    else:
        await followed(redis_url)
    # when it dies
    engine.gate.set()
    failed, answered = await asyncio.wait_for(asyncio.gather(first, second), 60)
    # then the follower has the whole answer, once, and pays for it
    assert failed.status_code >= 500
    assert answered.status_code == 200, answered.text
    assert answered.json()["choices"][0]["message"]["content"] == "".join(STEPS)
    assert answered.headers["x-weir-cache"].startswith("miss")
    assert [(row.kind, row.status) for row in await two.ledger()][-1] == ("usage", "ok")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_payers_budget_never_cuts_a_follower_silently(start_gateway: StartGateway, stream: bool) -> None:
    # given a key whose budget covers 300 tokens, and one of the same project without a budget
    engine = ScriptedEngine(Script(steps=("x",) * 900, gate_at=100))
    engine.gate.clear()
    gateway = await start_gateway(engine)
    rich = await key_beside_one_with_budget(gateway, price_of(1, 300) + 1)
    body = {"model": "m", "prompt": "p", "max_tokens": 900, "stream": stream}
    # when the rich one follows the generation that the poor one pays
    poor = asyncio.create_task(gateway.post("/v1/completions", body))
    await asyncio.wait_for(engine.stepped.wait(), 60)
    following = asyncio.create_task(gateway.post("/v1/completions", body, rich))
    await until(lambda: watching(gateway) == 2)
    engine.gate.set()
    cut, answered = await asyncio.wait_for(asyncio.gather(poor, following), 60)
    assert "budget" in cut.text
    rows = {row.key_id: row for row in await gateway.ledger()}
    if stream:
        # then a stream, which has shown the start, says that and why it ends
        last = frames(answered)[-1]
        assert (last["choices"][0]["finish_reason"], last["weir"]) == ("length", {"truncated_reason": "budget"})
        assert (rows[rich.key_id].kind, rows[rich.key_id].status) == ("cache_hit", EntryStatus.BUDGET_CUT)
    else:
        # then a plain one has the whole answer, at its own expense
        answer = answered.json()
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("x" * 900, "stop")
        assert "weir" not in answer
        assert (rows[rich.key_id].kind, rows[rich.key_id].status) == ("usage", EntryStatus.OK)


def test_an_event_travels_whole() -> None:
    top = (TokenLogprob(2, "b", b"b", -float("inf"), 2),)
    served = Served(
        pieces=[
            Piece(
                index=1,
                text="ü",
                reasoning="r",
                tool_calls=[ToolCallPiece(index=0, id="call_1", name="f", arguments="{}")],
                token_ids=[1, 2],
                logprobs=[TokenLogprob(1, "a", b"\xff", -0.5, 1, top)],
                prompt_logprobs=[None],
                finish_reason="stop",
                stop_reason=7,
            )
        ],
        counts=Counts(prompt_tokens=3, completion_tokens=2, cached_tokens=1, reasoning_tokens=1, engine_us=9),
        truncated_reason="budget",
    )
    assert _decoder.decode(_encoder.encode(served)) == served
    with pytest.raises(msgspec.DecodeError):
        _decoder.decode(_encoder.encode(served)[:-1])
