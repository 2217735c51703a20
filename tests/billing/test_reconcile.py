"""What the books disagree in is found, and only derived state is repaired."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from billing import rollups
from billing.limits.status import limit_status
from billing.tables import UsageByDay, UsageByModel, UsageBySpan, UsageRollup
from tests.billing.support import OPERATOR, START, World, admit, counter, finish, hold, rows_of

NOON = int(START.timestamp())


@pytest.fixture
async def used(world: World) -> World:
    """Three requests of 100 output tokens booked and rolled up, a fourth running with 100 held."""
    world.billing.ledger.start()
    world.billing.ledger._tasks[1].cancel()  # the journal is replayed when a test says so
    await world.limit("budget_month", 10**9)
    await world.limit("budget_day", 10**9, scope="tenant", model="m")
    for i in range(3):
        ticket = await admit(world, f"r{i}")
        await hold(world, ticket, prompt=0, output=100)
        await finish(world, ticket, prompt=0, output=100)
    await rollups.refresh(world.billing.db)
    await hold(world, await admit(world, "open"), prompt=0, output=100)

    async def no_pause(_: float) -> None:
        return None

    world.billing.reconciler._pause = no_pause
    return world


async def test_books_that_agree_are_clean_with_requests_running(used: World) -> None:
    found = await used.billing.reconciler.check()
    assert found.clean, found
    assert (found.counters_compared, found.open_holds, found.buckets_compared) == (2, 1, 1)


@pytest.mark.parametrize("by", [-5_000, 7])
async def test_a_counter_that_drifted_is_named_and_moved_back(used: World, by: int) -> None:
    (key,) = [k async for k in used.billing.redis.scan_iter(match="*:b:budget_month:*")]
    await used.billing.redis.hincrby(key, "used", by)
    found = await used.billing.reconciler.check()
    assert [(d.quota, d.drift, d.held_drift) for d in found.counters_wrong] == [("budget_month", by, 0)]
    repairs = await used.billing.reconciler.repair(used.billing.ledger, used.billing.reaper)
    assert repairs.counters_moved == 1
    assert await counter(used) == (4 * 100 * 2_000, 100 * 2_000)
    assert (await used.billing.reconciler.check()).clean


async def test_a_hold_that_leaked_out_of_the_index_is_found_and_given_back(used: World) -> None:
    tenant = f"weir:{{{used.tenant.id}}}"
    await used.billing.redis.delete(f"{tenant}:hold:open", f"{tenant}:holds")
    found = await used.billing.reconciler.check()
    assert {d.held_drift for d in found.counters_wrong} == {100 * 2_000}
    await used.billing.reconciler.repair(used.billing.ledger, used.billing.reaper)
    assert await counter(used) == (3 * 100 * 2_000, 0)
    assert (await used.billing.reconciler.check()).clean


async def test_a_roll_up_that_was_tampered_with_is_found_and_rewritten_from_the_ledger(used: World) -> None:
    async with used.billing.db.begin() as session:
        await session.execute(sa.update(UsageRollup).values(amount_nano_usd=UsageRollup.amount_nano_usd + 1))
    found = await used.billing.reconciler.check()
    assert set(found.buckets_wrong) == {NOON, NOON - 12 * 3600}  # the quarter, and the day it lies in
    rows_before = [(r.id, r.amount_nano_usd) for r in await rows_of(used.billing.db)]
    await used.billing.reconciler.repair(used.billing.ledger, used.billing.reaper)
    assert (await used.billing.reconciler.check()).clean
    assert [(r.id, r.amount_nano_usd) for r in await rows_of(used.billing.db)] == rows_before


@pytest.mark.parametrize("table", [UsageByModel, UsageBySpan, UsageByDay])
async def test_a_sum_derived_of_roll_ups_that_was_tampered_with_is_found_and_derived_again(
    used: World, table: type[UsageByModel | UsageBySpan | UsageByDay]
) -> None:
    async with used.billing.db.begin() as session:
        changed = await session.execute(sa.update(table).values(amount_nano_usd=table.amount_nano_usd + 1))
    assert changed.rowcount == 1
    assert not (await used.billing.reconciler.check()).clean
    await used.billing.reconciler.repair(used.billing.ledger, used.billing.reaper)
    assert (await used.billing.reconciler.check()).clean
    async with used.billing.db.read() as session:
        booked = sum(row.amount_nano_usd for row in await rows_of(used.billing.db))
        assert await session.scalar(sa.select(sa.func.sum(table.amount_nano_usd))) == booked


async def test_a_missing_roll_up_is_found(used: World) -> None:
    async with used.billing.db.begin() as session:
        await session.execute(sa.delete(UsageRollup))
    assert NOON in (await used.billing.reconciler.check()).buckets_wrong


async def test_rows_in_the_journal_and_overdue_holds_are_not_clean(used: World) -> None:
    ticket = await admit(used, "journalled")
    await hold(used, ticket, prompt=0, output=1)
    from tests.billing.support import entry_for

    await used.billing.journal.append(entry_for(ticket, prompt=0, output=1))
    await used.billing.redis.zadd(ticket.holds_key, {"open": 1})
    found = await used.billing.reconciler.check()
    assert (found.journal_files, found.expired_holds, found.clean) == (1, 1, False)
    repairs = await used.billing.reconciler.repair(used.billing.ledger, used.billing.reaper)
    assert (repairs.rows_replayed, repairs.holds_reaped) == (1, 1)
    await used.billing.admission.settle(ticket, amount_nano=2_000, tokens=1)
    assert (await used.billing.reconciler.check()).clean


async def test_a_hold_that_the_reapers_are_about_to_take_is_no_drift(used: World) -> None:
    redis = used.billing.redis
    ticket = await admit(used, "ended")
    await hold(used, ticket, prompt=0, output=1)
    seconds, _ = await redis.time()
    await redis.zadd(ticket.holds_key, {"ended": (seconds - 1) * 1_000_000})
    found = await used.billing.reconciler.check()
    assert (found.open_holds > 0, found.expired_holds) == (True, 0)
    await redis.zadd(ticket.holds_key, {"ended": (seconds - 60) * 1_000_000})
    assert (await used.billing.reconciler.check()).expired_holds == 1
    await used.billing.admission.settle(ticket, amount_nano=0, tokens=0)


async def test_a_drift_that_changes_between_readings_is_traffic_and_not_drift(used: World) -> None:
    redis = used.billing.redis
    (key,) = [k async for k in redis.scan_iter(match="*:b:budget_month:*")]
    readings = 0

    async def busy(_: float) -> None:
        nonlocal readings
        readings += 1
        await redis.hincrby(key, "used", 1)

    await redis.hincrby(key, "used", 1)
    used.billing.reconciler._pause = busy
    found = await used.billing.reconciler.check()
    assert readings > 0
    assert found.counters_wrong == []
    await asyncio.sleep(0)


async def test_a_key_can_ask_what_was_spent_what_is_left_and_when_it_resets(used: World) -> None:
    await used.limit("rpm", 60)
    await used.limit("concurrency", 3)
    await admit(used, "rated")
    async with used.billing.db.read() as session:
        statuses = await limit_status(
            used.billing.redis, session, used.admin, tenant=used.tenant.id, now=used.billing.reconciler._clock()
        )
    by_name = {status.quota: status for status in statuses}
    month = by_name["budget_month"]
    assert (month.used, month.held, month.left) == (800_000, 200_000, 10**9 - 800_000)
    assert month.resets_at is not None
    assert month.resets_at.isoformat() == "2026-12-01T00:00:00+00:00"
    assert (by_name["rpm"].used, by_name["rpm"].left) == (1, 59)
    assert by_name["concurrency"].used == 1
    async with used.billing.db.read() as session:
        assert len(await limit_status(used.billing.redis, session, OPERATOR, tenant="acme")) == 4
