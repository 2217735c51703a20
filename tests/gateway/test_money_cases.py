"""Faults that gateways in use have had with money and memory, tried here on a whole gateway."""

from __future__ import annotations

import asyncio
import gc
import random
import re
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from billing.tables import LedgerEntry
from engine.errors import EngineUnavailable
from engine.types import EngineRequest
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.raw_asgi import RawExchange
from tests.gateway.test_hit_prices import assert_books_agree, spent

PARTS = ("input", "cached_input", "output", "batch_input", "batch_output")


def parts_of(row: LedgerEntry) -> int:
    return sum(getattr(row, f"{name}_amount_nano") for name in PARTS)


async def test_streamed_and_plain_cost_the_same_and_every_row_is_the_sum_of_its_parts(
    start_gateway: StartGateway,
) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(steps=("a",) * 30)), cache_enabled=False)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for fields in ({}, {"stream": True}, usage):
        assert (await gateway.chat("the same", max_tokens=30, **fields)).status_code == 200
    rows = await gateway.ledger()
    assert len(rows) == 3
    assert len({(row.input_tokens, row.output_tokens, row.amount_nano_usd) for row in rows}) == 1
    assert rows[0].amount_nano_usd > 0
    assert all(parts_of(row) + row.adjustment_nano == row.amount_nano_usd for row in rows)
    # and the database lets no row be anything else
    async with gateway.parts.billing.db.begin() as session:
        with pytest.raises(IntegrityError, match="amounts_add_up"):
            await session.execute(sa.update(LedgerEntry).values(amount_nano_usd=LedgerEntry.amount_nano_usd + 1))


async def test_a_response_cut_by_its_token_limit_is_charged(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(steps=("a", "b", "c"))), cache_enabled=False)
    for stream in (False, True):
        body = {"model": "m", "input": "hi", "max_output_tokens": 1, "stream": stream}
        answer = await gateway.post("/v1/responses", body)
        assert "incomplete" in answer.text
    rows = await gateway.ledger()
    assert [row.output_tokens for row in rows] == [1, 1]
    assert all(row.input_tokens > 0 and row.amount_nano_usd > 0 for row in rows)


async def test_two_hundred_requests_that_end_in_every_way_leave_no_hold_and_the_books_agreeing(
    start_gateway: StartGateway,
) -> None:
    chance = random.Random(8)

    def script(_request: EngineRequest) -> Script:
        steps = tuple("abcdefgh")[: chance.randint(1, 8)]
        if chance.random() < 0.25:
            return Script(steps=steps, fail_at=chance.randrange(len(steps)), error=EngineUnavailable("gone"))
        return Script(steps=steps)

    gateway = await start_gateway(ScriptedEngine(script))
    await gateway.set_limit(gateway.tenant, "budget_month", 10**12)
    await gateway.set_limit(gateway.tenant, "concurrency", 1000)

    async def one(number: int) -> None:
        messages = [{"role": "user", "content": f"question {chance.randrange(150)}"}]
        body: dict[str, Any] = {"model": "m", "messages": messages, "max_tokens": 8, "stream": number % 2 == 0}
        if number % 3:
            await gateway.post("/v1/chat/completions", body, **({"x_weir_timeout": "0.001"} if number % 9 == 1 else {}))
            return
        async with RawExchange(gateway, "POST", "/v1/chat/completions", body) as raw:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            raw.leave()
            await raw.finished()

    for first in range(0, 200, 20):
        await asyncio.gather(*(one(number) for number in range(first, first + 20)))
    await assert_books_agree(gateway)
    used, held = await spent(gateway)
    assert held == 0
    assert used == sum(row.amount_nano_usd for row in await gateway.ledger())
    assert gateway.parts.billing.admission.num_live == 0
    assert not gateway.engine.running


async def _ask_many(gateway: Gateway, first: int, count: int) -> None:
    for number in range(first, first + count):
        if number % 5 == 4:
            body = {"model": "m", "messages": [{"role": "user", "content": f"left {number}"}], "stream": True}
            async with RawExchange(gateway, "POST", "/v1/chat/completions", body) as raw:
                await raw.start()
                raw.leave()
                await raw.finished()
        else:
            assert (await gateway.chat(f"question {number}")).status_code == 200
    await gateway.ledger()


def _ours_alive() -> Counter[str]:
    """Live objects of this product's classes and the loop's; SQLAlchemy's bounded caches of statements are not."""
    gc.collect()
    kinds = Counter(str(type(each)) for each in gc.get_objects())
    return Counter({kind: count for kind, count in kinds.items() if _OURS.match(kind)})


_OURS = re.compile(r"<class '_?(gateway|billing|cache|engine|asyncio|litestar|httpx)\.")


async def test_requests_leave_nothing_in_memory(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(semantic_cache_enabled=False)
    await gateway.set_limit(gateway.tenant, "budget_month", 10**12)
    await _ask_many(gateway, 0, 50)  # pools fill
    gateway.engine.requests.clear()
    before = _ours_alive()
    await _ask_many(gateway, 1000, 200)
    gateway.engine.requests.clear()
    grown = _ours_alive() - before
    assert grown.total() < 100, f"more after 200 requests: {grown.most_common(10)}"  # not one in two
