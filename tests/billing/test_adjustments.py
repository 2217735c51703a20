"""Credits and debits: one row each, seen by budgets, and never booked twice."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from billing.adjustments import MAX_ADJUSTED_NANO_USD, adjust
from billing.audit import list_events
from billing.errors import Conflict, Forbidden, Invalid, QuotaDenied
from billing.money import MAX_NANO_USD, NANO
from billing.tables import LedgerEntry
from tests.billing.support import OPERATOR, World, admit, counter, finish, hold, rows_of


async def credit(world: World, id: str = "credit-1", amount: int = -100 * 2_000, **more: str) -> bool:
    billing = world.billing
    return await adjust(
        billing.db, billing.redis, OPERATOR, id=id, tenant="acme", amount_nano=amount, note="outage",
        clock=billing.reconciler._clock, **more,
    )  # fmt: skip


async def test_a_credit_is_booked_once_and_gives_a_used_up_budget_room(world: World) -> None:
    # given a budget of 100 tokens that is used up
    world.billing.ledger.start()
    await world.limit("budget_month", 100 * 2_000, scope="tenant")
    ticket = await admit(world, "r1")
    await hold(world, ticket, prompt=0, output=100)
    await finish(world, ticket, prompt=0, output=100)
    with pytest.raises(QuotaDenied):
        await hold(world, await admit(world, "r2"), prompt=0, output=1)
    # when the tenant is credited, twice by the same id
    assert [await credit(world), await credit(world)] == [True, False]
    # then there is room again, and ledger and counter agree
    assert await counter(world) == (0, 0)
    await hold(world, await admit(world, "r3"), prompt=0, output=100)
    rows = await rows_of(world.billing.db)
    assert [(r.kind, r.amount_nano_usd, r.adjustment_nano) for r in rows][1:] == [("adjustment", -200_000, -200_000)]
    assert (await world.billing.reconciler.check()).counters_wrong == []
    async with world.billing.db.read() as session:
        (event,) = await list_events(session, OPERATOR, actions=["adjustment.created"])
    assert event.detail == {"amount_usd": "-0.0002", "note": "outage"}


async def test_a_budget_that_has_not_been_started_sees_the_credit_when_it_is(world: World) -> None:
    await credit(world, project=world.project.id)
    await world.limit("budget_month", 10**9, scope="project")
    await hold(world, await admit(world, "r1"), prompt=0, output=1)
    assert await counter(world) == (-200_000 + 2_000, 2_000)


async def test_the_same_id_with_another_amount_conflicts_and_nonsense_is_refused(sqlite_world: World) -> None:
    await credit(sqlite_world)
    with pytest.raises(Conflict):
        await credit(sqlite_world, amount=-1)
    with pytest.raises(Invalid):
        await credit(sqlite_world, id="zero", amount=0)
    billing = sqlite_world.billing
    with pytest.raises(Forbidden):
        await adjust(billing.db, billing.redis, sqlite_world.admin, id="x", tenant="acme", amount_nano=-1, note="mine")


@pytest.mark.parametrize("amount", [MAX_NANO_USD + 1, -MAX_NANO_USD - 1, 9_223_372_036 * NANO])
async def test_an_adjustment_beyond_the_largest_is_refused_by_its_limit(sqlite_world: World, amount: int) -> None:
    with pytest.raises(Invalid, match=r"beyond the largest adjustment, 100000000 USD"):
        await credit(sqlite_world, amount=amount)
    assert await rows_of(sqlite_world.billing.db) == []


async def test_many_largest_adjustments_never_overflow_the_books(world: World) -> None:
    # given as many of the largest debits as the tenant's total takes
    booked = MAX_ADJUSTED_NANO_USD // MAX_NANO_USD
    for number in range(booked):
        assert await credit(world, id=f"debit-{number}", amount=MAX_NANO_USD)
    # when one more comes, of either sign
    for sign in (1, -1):
        with pytest.raises(Invalid, match=r"adjustments would come to more than 4611686018\.427387904 USD"):
            await credit(world, id=f"one-more-{sign}", amount=sign * MAX_NANO_USD)
    # then it is not booked, a retry of the last is no error, and the books still add up
    assert await credit(world, id="debit-0", amount=MAX_NANO_USD) is False
    async with world.billing.db.read() as session:
        total = await session.scalar(sa.select(sa.func.sum(LedgerEntry.amount_nano_usd)))
    assert int(total or 0) == booked * MAX_NANO_USD
    assert (await world.billing.reconciler.check()).counters_wrong == []
