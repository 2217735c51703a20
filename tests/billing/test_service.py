"""One request through every part of billing, on both databases and a real Redis."""

from __future__ import annotations

import asyncio

import pytest

from billing.entry import Entry
from billing.errors import Invalid
from billing.limits.ticket import HoldTerms
from billing.prices import TokenCounts
from billing.reports.registry import report_named
from billing.reports.report import ReportQuery
from tests.billing.support import OPERATOR, World, admit, counter, finish, hold, rows_of


async def test_one_request_is_admitted_held_booked_settled_and_reported(world: World) -> None:
    # given a key with limits of every kind
    billing = world.billing
    for quota, hard in [("rpm", 10), ("tpm", 10_000), ("concurrency", 2), ("budget_month", 10**9)]:
        await world.limit(quota, hard)
    billing.ledger.start()
    principal = await world.principal()
    rates = await billing.prices.rates(principal.tenant_id, "m")

    # when a request of 100 prompt tokens makes 200 of the 1,000 it asked for
    ticket = await billing.admission.open(principal, "m", "r1")
    admitted = await billing.admission.admit(ticket)
    held = await billing.admission.hold(ticket, HoldTerms(prompt_tokens=100, max_output_tokens=1000, rates=rates))
    ticket.note(prompt_tokens=100, output_tokens=200)
    extended = await billing.admission.extend(ticket)
    entry = Entry.priced(
        request_id="r1",
        principal=principal,
        endpoint="chat",
        model="m",
        accepted_at=ticket.accepted_at,
        tokens=TokenCounts.of(prompt_tokens=100, completion_tokens=200),
        rates=rates,
    )
    booked = await billing.ledger.book(entry)
    again = await billing.ledger.book(entry)
    await billing.admission.settle(ticket, amount_nano=entry.amount_nano_usd, tokens=entry.total_tokens)

    # then each stage says what is left, and the money is 100 x $1/M + 200 x $2/M to the nano-USD
    assert admitted.requests is not None
    assert admitted.requests.remaining == 9
    assert held.granted_output_tokens == 256
    assert held.tokens is not None
    assert held.tokens.remaining == 8_900
    assert extended.granted_output_tokens == 512
    assert (booked.duplicate, again.duplicate) == (False, True)
    counter = await billing.redis.hgetall(ticket.budgets[0][1])
    assert (counter[b"used"], counter[b"held"]) == (b"500000", b"0")
    async with billing.db.read() as session:
        table = await report_named("spend").run(session, OPERATOR, ReportQuery(by=("day", "model")))
    assert [(r["day"], r["model"], r["amount_nano_usd"]) for r in table.rows] == [("2026-11-15", "m", 500_000)]


async def test_a_gateway_that_starts_serves_and_stops_leaves_every_row_in_sql(world: World) -> None:
    billing = world.billing
    await world.limit("budget_month", 10**12)
    await world.limit("concurrency", 50)
    await billing.start()
    await asyncio.wait_for(billing.bus.subscribed.wait(), 60)

    async def ask(i: int) -> None:
        ticket = await admit(world, f"r{i}")
        await hold(world, ticket, output=5)
        await finish(world, ticket, output=5)

    await asyncio.gather(*(ask(i) for i in range(40)))
    running = await admit(world, "running")  # a stream that the stop finds still running
    await hold(world, running, output=5)
    await billing.admission.beat()
    await finish(world, running, output=5)
    await billing.stop()
    rows = await rows_of(billing.db)
    assert len({row.request_id for row in rows}) == 41
    assert billing.journal.num_files() == 0
    assert await counter(world) == (sum(row.amount_nano_usd for row in rows), 0)


async def test_a_gateway_refuses_to_start_on_a_redis_that_would_evict(world: World) -> None:
    await world.billing.redis.config_set("maxmemory", "100mb")
    await world.billing.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(Invalid, match="noeviction"):
            await world.billing.start()
    finally:
        await world.billing.redis.config_set("maxmemory", "0")
        await world.billing.redis.config_set("maxmemory-policy", "noeviction")


async def test_a_soft_rate_alerts_and_lets_through(sqlite_world: World) -> None:
    await sqlite_world.limit("rpm", soft=2)
    await sqlite_world.limit("tpm", 1_000, soft=500)
    for i in range(4):
        ticket = await admit(sqlite_world, f"r{i}")
        await hold(sqlite_world, ticket, prompt=100, output=50)
    assert await sqlite_world.billing.watcher.tell() == 2  # each once, however often it was passed
