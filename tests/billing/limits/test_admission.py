"""Limits with a real Redis: all or nothing, exact to the nano-USD, nothing leaked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from billing.errors import QuotaDenied
from billing.limits.policy import PolicyStore
from billing.limits.stage import HOLD
from billing.limits.ticket import Ticket
from billing.money import parse_usd
from billing.prices import set_price
from billing.trips import Command
from tests.billing.support import OPERATOR, FakeClock, World, admit, counter, finish, hold

BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)
REFUSALS = [("tpm", 50), ("budget_month", 1_000), ("max_tokens_per_request", 20)]


async def outcome(world: World, request_id: str, *, prompt: int, output: int) -> Ticket | QuotaDenied:
    try:
        ticket = await admit(world, request_id)
        await hold(world, ticket, prompt=prompt, output=output)
    except QuotaDenied as exc:
        return exc
    return ticket


async def redis_state(world: World) -> dict[bytes, object]:
    """Everything in Redis but hold marks, with rates dropped (they refill by the microsecond)."""
    redis = world.billing.redis
    state: dict[bytes, object] = {}
    async for key in redis.scan_iter():
        kind = await redis.type(key)
        if kind == b"zset":
            state[key] = await redis.zrange(key, 0, -1)
        elif kind == b"hash":
            state[key] = await redis.hgetall(key)
    return state


async def test_tpm_100_lets_exactly_one_of_five_parallel_requests_of_60_through(sqlite_world: World) -> None:
    await sqlite_world.limit("tpm", 100)
    results = await asyncio.gather(*(outcome(sqlite_world, f"r{i}", prompt=0, output=60) for i in range(5)))
    refused = [r for r in results if isinstance(r, QuotaDenied)]
    assert len(refused) == 4
    assert all(r.limit == "tpm" and r.retry_after_s is not None and 0 < r.retry_after_s <= 60 for r in refused)


async def test_the_fourth_of_three_requests_a_minute_is_refused_with_the_time_to_wait(sqlite_world: World) -> None:
    await sqlite_world.limit("rpm", 3)
    for i in range(3):
        await admit(sqlite_world, f"r{i}")
    with pytest.raises(QuotaDenied) as refusal:
        await admit(sqlite_world, "r4")
    assert (refusal.value.scope, refusal.value.limit, refusal.value.money) == ("key", "rpm", False)
    assert refusal.value.retry_after_s is not None
    assert 19 < refusal.value.retry_after_s <= 20


@pytest.mark.parametrize("limit", [1, 3, 7, 11, 97])
async def test_a_rate_admits_its_whole_limit_at_once_and_not_one_more(sqlite_world: World, limit: int) -> None:
    await sqlite_world.limit("rpd", limit)
    for i in range(limit):
        await admit(sqlite_world, f"r{i}")
    with pytest.raises(QuotaDenied):
        await admit(sqlite_world, "one more")


async def test_a_limit_of_zero_refuses_for_good(sqlite_world: World) -> None:
    await sqlite_world.limit("rpm", 0)
    with pytest.raises(QuotaDenied) as refusal:
        await admit(sqlite_world, "r")
    assert refusal.value.retry_after_s is None


async def test_a_request_refused_at_one_scope_takes_nothing_at_another(sqlite_world: World) -> None:
    # given a tenant with room and a key without
    await sqlite_world.limit("rpm", 100, scope="tenant")
    await sqlite_world.limit("rpm", 1, scope="key")
    await admit(sqlite_world, "first")
    # when nine more are refused by the key
    for i in range(9):
        with pytest.raises(QuotaDenied) as refusal:
            await admit(sqlite_world, f"r{i}")
        assert refusal.value.scope == "key"
    # then the tenant has counted one
    await sqlite_world.limit("rpm", 1000, scope="key")
    ticket = await sqlite_world.billing.admission.open(await sqlite_world.principal(), "m", "next")
    admitted = await sqlite_world.billing.admission.admit(ticket)
    assert admitted.requests is not None
    assert (admitted.requests.limit, admitted.requests.remaining) == (100, 98)


@pytest.mark.parametrize("refusing", REFUSALS)
async def test_a_request_refused_at_the_hold_has_used_up_nothing(
    sqlite_world: World, refusing: tuple[str, int]
) -> None:
    world = sqlite_world
    await world.limit("rpm", 1)
    await world.limit("concurrency", 1)
    await world.limit(*refusing)
    for i in range(5):  # the fifth would meet rpm or concurrency, had the first four left anything behind
        result = await outcome(world, f"r{i}", prompt=10, output=100)
        assert isinstance(result, QuotaDenied)
        assert result.limit == refusing[0]
    state = await redis_state(world)
    assert all(value in ([], {b"used": b"0", b"held": b"0"}) or b"seeded" in value for value in state.values())  # type: ignore[operator]
    assert world.billing.admission.num_live == 0


async def test_raising_a_limit_leaves_what_was_used_used_and_no_more(sqlite_world: World) -> None:
    await sqlite_world.limit("rpm", 2)
    for i in range(2):
        await admit(sqlite_world, f"r{i}")
    await sqlite_world.limit("rpm", 1000)
    ticket = await sqlite_world.billing.admission.open(await sqlite_world.principal(), "m", "next")
    admitted = await sqlite_world.billing.admission.admit(ticket)
    assert admitted.requests is not None
    assert admitted.requests.remaining in (997, 998)  # one may have flowed back


async def test_limits_for_one_model_leave_the_others_alone(sqlite_world: World) -> None:
    await sqlite_world.limit("rpm", 1, model="m")
    await admit(sqlite_world, "r1")
    with pytest.raises(QuotaDenied) as refusal:
        await admit(sqlite_world, "r2")
    assert refusal.value.model == "m"
    await admit(sqlite_world, "r3", model="other")


async def test_a_lease_is_free_again_after_each_kind_of_ending(sqlite_world: World) -> None:
    world = sqlite_world
    await world.limit("concurrency", 1)
    await world.limit("tpm", 1_000_000)
    first = await admit(world, "cache hit")
    with pytest.raises(QuotaDenied) as refusal:
        await admit(world, "second")
    assert refusal.value.limit == "concurrency"
    await world.billing.admission.release(first)
    done = await admit(world, "done")
    await hold(world, done)
    await finish(world, done)
    failed = await admit(world, "failed")
    await hold(world, failed)
    await world.billing.admission.release(failed)
    await world.limit("tpm", 1)
    refused = await admit(world, "refused at the hold")
    with pytest.raises(QuotaDenied):
        await hold(world, refused)
    await world.limit("tpm", 1_000_000)
    await admit(world, "last")
    assert world.billing.admission.num_live == 1


async def test_unused_tokens_are_given_back_when_a_request_settles(sqlite_world: World) -> None:
    await sqlite_world.limit("tpm", 1_000)
    ticket = await admit(sqlite_world, "r1")
    held = await hold(sqlite_world, ticket, prompt=100, output=800)
    assert held.tokens is not None
    assert held.tokens.remaining == 100
    await finish(sqlite_world, ticket, prompt=100, output=50)
    again = await admit(sqlite_world, "r2")
    held = await hold(sqlite_world, again, prompt=0, output=1)
    assert held.tokens is not None
    assert 849 <= held.tokens.remaining <= 860  # 1,000 - 150 - 1, and what flowed back meanwhile


async def test_a_request_larger_than_its_limit_is_told_that_waiting_does_not_help(sqlite_world: World) -> None:
    await sqlite_world.limit("tpm", 100)
    refusal = await outcome(sqlite_world, "r", prompt=101, output=0)
    assert isinstance(refusal, QuotaDenied)
    assert refusal.too_large
    assert refusal.retry_after_s is None


async def test_a_budget_holds_prompt_and_slice_then_counts_the_exact_amount(world: World) -> None:
    await world.limit("budget_month", parse_usd("1"))
    ticket = await admit(world, "r1")
    await hold(world, ticket, prompt=1_000, output=5_000, slice_tokens=100)
    # 1,000 x $1/M, one nano for a split of the prompt, 100 x $2/M
    assert await counter(world) == (1_000_000 + 1 + 200_000, 1_000_000 + 1 + 200_000)
    entry = await finish(world, ticket, prompt=1_000, output=37)
    assert entry.amount_nano_usd == 1_000_000 + 74_000
    assert await counter(world) == (entry.amount_nano_usd, 0)


async def test_a_budget_of_millions_and_a_nano_goes_through_redis_and_back_whole(sqlite_world: World) -> None:
    # given a budget beyond what a Lua number prints, and a charge that leaves exactly 1 nano-USD of it
    budget = parse_usd("$2,500,000.370000001")
    world = sqlite_world
    async with world.billing.db.begin() as session:
        await set_price(
            session,
            OPERATOR,
            model="dear",
            input_nano=10**15,
            output_nano=10**9,
            effective_from=datetime(2020, 1, 1, tzinfo=UTC),
        )
    await world.limit("budget_month", budget)
    ticket = await admit(world, "r1", model="dear")
    await hold(world, ticket, prompt=2, output=0)
    amount = budget - 1
    await world.billing.admission.settle(ticket, amount_nano=amount, tokens=2)
    assert await counter(world) == (2_500_000_370_000_000, 0)
    # when 1 nano-USD is asked for it fits, and 2 do not: doubles of that size would not tell them apart beyond 2^53
    second = await admit(world, "r2")
    await hold(world, second, prompt=0, output=0)
    await world.billing.admission.settle(second, amount_nano=1, tokens=0)
    assert await counter(world) == (budget, 0)
    third = await admit(world, "r3")
    with pytest.raises(QuotaDenied):
        await hold(world, third, prompt=1, output=0)
    assert await counter(world) == (budget, 0)


async def test_money_is_compared_exactly_beyond_two_to_the_53rd(sqlite_world: World) -> None:
    budget = 2**56 + 1  # $72 million: its neighbours are the same double
    await sqlite_world.limit("budget_month", budget)
    ticket = await admit(sqlite_world, "r1")
    await hold(sqlite_world, ticket, prompt=0, output=0)
    await sqlite_world.billing.admission.settle(ticket, amount_nano=budget - 2_001, tokens=0)
    second = await admit(sqlite_world, "r2")
    await hold(sqlite_world, second, prompt=1, output=0)  # 1,000 and one for the split
    assert isinstance(await outcome(sqlite_world, "r3", prompt=1, output=0), QuotaDenied)
    assert await counter(sqlite_world) == (budget - 1_000, 1_001)


async def test_a_free_model_is_served_to_a_key_whose_budget_is_used_up(sqlite_world: World) -> None:
    world = sqlite_world
    async with world.billing.db.begin() as session:
        await set_price(
            session,
            OPERATOR,
            model="free",
            input_nano=0,
            output_nano=0,
            effective_from=datetime(2020, 1, 1, tzinfo=UTC),
        )
    await world.limit("budget_month", 0)
    assert isinstance(await outcome(world, "paid", prompt=1, output=1), QuotaDenied)
    ticket = await admit(world, "free", model="free")
    assert (await hold(world, ticket, output=50)).granted_output_tokens == 50


async def test_a_stream_is_granted_slice_by_slice_to_the_last_token_the_budget_pays(sqlite_world: World) -> None:
    # given a budget of 1,001 output tokens at $2 a million
    world = sqlite_world
    await world.limit("budget_month", 1_001 * 2_000)
    ticket = await admit(world, "r1")
    held = await hold(world, ticket, prompt=0, output=10_000, slice_tokens=100)
    assert held.granted_output_tokens == 100
    # when it streams on and on
    while not ticket.at_end:
        ticket.note(prompt_tokens=0, output_tokens=ticket.granted_output_tokens)
        await world.billing.admission.extend(ticket)
    # then it may go to exactly the last token that is paid for, and the spending is the budget to the nano-USD
    assert ticket.granted_output_tokens == 1_001
    await finish(world, ticket, prompt=0, output=1_001)
    assert await counter(world) == (1_001 * 2_000, 0)


async def test_without_a_hard_budget_everything_asked_for_is_granted_at_once(sqlite_world: World) -> None:
    await sqlite_world.limit("budget_month", soft=5)
    ticket = await admit(sqlite_world, "r1")
    assert (await hold(sqlite_world, ticket, output=9_999)).granted_output_tokens == 9_999


async def test_settling_twice_and_late_counts_once(sqlite_world: World) -> None:
    world = sqlite_world
    await world.limit("budget_month", 10**9)
    ticket = await admit(world, "r1")
    await hold(world, ticket)
    for _ in range(3):
        await world.billing.admission.settle(ticket, amount_nano=123, tokens=5)
    assert await counter(world) == (123, 0)


async def test_a_hold_repeated_after_a_lost_reply_is_made_once(sqlite_world: World) -> None:
    world = sqlite_world
    await world.limit("budget_month", 10**9)
    await world.limit("tpm", 1000)
    ticket = await admit(world, "r1")
    first = await hold(world, ticket, prompt=10, output=100)
    used = await counter(world)
    second = await hold(world, ticket, prompt=10, output=100)
    assert first.granted_output_tokens == second.granted_output_tokens
    assert await counter(world) == used


async def asked_again(world: World) -> Ticket:
    """A batch's line that holds anew after its first try was settled at 100."""
    await world.limit("budget_month", 100_000)
    first = await admit(world, "line")
    await hold(world, first, prompt=10, output=10)
    await world.billing.admission.settle(first, amount_nano=100, tokens=20)
    again = await admit(world, "line")
    await hold(world, again, prompt=10, output=10)
    return again


async def test_a_line_asked_again_after_its_first_try_was_settled_holds_and_counts_once(sqlite_world: World) -> None:
    world = sqlite_world
    again = await asked_again(world)
    assert again.held_nano > 0
    assert await counter(world, "budget_month") == (100 + again.held_nano, again.held_nano)
    await world.billing.admission.settle(again, amount_nano=250, tokens=20)
    assert await counter(world, "budget_month") == (250, 0)
    third = await outcome(world, "line", prompt=10**6, output=10)
    assert isinstance(third, QuotaDenied)
    assert await counter(world, "budget_month") == (250, 0)


@pytest.mark.parametrize("holds_anew", [True, False])
async def test_a_line_asked_again_that_gives_its_hold_up_still_counts_once(
    sqlite_world: World, *, holds_anew: bool
) -> None:
    world = sqlite_world
    again = await asked_again(world)
    budgets = again.budgets
    await world.billing.admission.unhold(again)
    assert await counter(world, "budget_month") == (100, 0)
    if holds_anew:
        await hold(world, again, prompt=10, output=10)
        assert await counter(world, "budget_month") == (100 + again.held_nano, again.held_nano)
    else:  # cancelled in the middle of giving up
        again.budgets = budgets
    await world.billing.admission.settle(again, amount_nano=250, tokens=20)
    assert await counter(world, "budget_month") == (250, 0)


@pytest.mark.parametrize("time_zone", ["Asia/Tokyo", "Europe/Berlin"])
async def test_a_daily_budget_is_new_at_local_midnight(sqlite_world: World, clock: FakeClock, time_zone: str) -> None:
    from zoneinfo import ZoneInfo

    from billing.tenants import update_tenant

    world = sqlite_world
    async with world.billing.db.begin() as session:
        await update_tenant(session, OPERATOR, world.tenant.id, time_zone=time_zone)
    await world.limit("budget_day", 100 * 2_000)
    world.billing.ledger.start()
    clock.now = datetime(2026, 10, 24, 23, 59, 58, tzinfo=ZoneInfo(time_zone))  # in Berlin before a clock change
    ticket = await admit(world, "r1")
    await hold(world, ticket, prompt=0, output=100)
    await finish(world, ticket, prompt=0, output=100)
    clock.advance(1)
    refusal = await outcome(world, "r2", prompt=0, output=1)
    assert isinstance(refusal, QuotaDenied)
    assert refusal.retry_after_s == 1
    clock.advance(1)
    assert isinstance(await outcome(world, "r3", prompt=0, output=100), Ticket)


async def test_a_limit_set_in_mid_month_starts_from_what_the_ledger_says(world: World) -> None:
    # given spending before there was a budget
    world.billing.ledger.start()
    ticket = await admit(world, "r1")
    await hold(world, ticket, prompt=0, output=500)
    await finish(world, ticket, prompt=0, output=500)
    # when a budget is set that it has used up
    await world.limit("budget_month", 500 * 2_000, scope="tenant")
    # then nothing more is let through
    assert isinstance(await outcome(world, "r2", prompt=0, output=1), QuotaDenied)


async def test_an_unlimited_key_needs_no_limits_to_be_served(sqlite_world: World) -> None:
    ticket = await admit(sqlite_world, "r1")
    assert (await hold(sqlite_world, ticket, output=7)).granted_output_tokens == 7


async def test_stages_share_a_trip_and_survive_a_script_flush(sqlite_world: World) -> None:
    from billing.errors import ScriptsFlushed

    world = sqlite_world
    await world.limit("rpm", 5)
    redis, admission = world.billing.redis, world.billing.admission
    await redis.script_flush()
    ticket = await admission.open(await world.principal(), "m", "r1")
    stage = admission.admit_stage(ticket)
    commands = [*stage.commands, ("GET", "something of the cache's")]
    replies, _ = await admission.trips.execute(commands, deadline_s=60.0)
    assert replies[1] is None
    with pytest.raises(ScriptsFlushed):
        stage.parse(replies[:1])
    admitted = await stage.run(redis)
    assert admitted.requests is not None
    assert admitted.requests.remaining == 4
    second = admission.admit_stage(await admission.open(await world.principal(), "m", "r2"))
    replies, _ = await admission.trips.execute(second.commands, deadline_s=60.0)
    result = second.parse(replies)
    assert result.requests is not None
    assert result.requests.remaining == 3


async def test_every_key_of_a_tenant_lies_under_one_hash_tag(sqlite_world: World) -> None:
    world = sqlite_world
    for quota in ("rpm", "tpm", "concurrency", "budget_day", "budget_month"):
        await world.limit(quota, 10**6)
        await world.limit(quota, 10**6, scope="tenant", model="m")
    ticket = await admit(world, "r1")
    await hold(world, ticket)
    tag = f"weir:{{{world.tenant.id}}}:".encode()
    assert all([key.startswith(tag) async for key in world.billing.redis.scan_iter()])


async def test_a_request_that_is_cancelled_before_it_hears_of_its_hold_leaves_none(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, admission = sqlite_world, sqlite_world.billing.admission
    await world.limit("budget_month", 10**9)
    await world.limit("tpm", 1_000)
    await world.limit("concurrency", 1)
    await finish(world, await held(world, "r1"))
    used, _ = await counter(world)
    ticket, execute, made = await admit(world, "r2"), admission.trips.execute, asyncio.Event()

    async def unheard(commands: Sequence[Command], *, deadline_s: float) -> tuple[list[Any], float]:
        result = await execute(commands, deadline_s=deadline_s)
        if HOLD.sha in commands[0]:
            made.set()
            await asyncio.Event().wait()
        return result

    with monkeypatch.context() as patched:
        patched.setattr(admission.trips, "execute", unheard)
        holding = asyncio.create_task(hold(world, ticket, prompt=0, output=800))
        await asyncio.wait_for(made.wait(), 60)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
    assert await counter(world) == (used, 0)
    assert admission.num_live == 0
    await hold(world, await admit(world, "r3"), prompt=0, output=800)  # the slot and the tokens are free again


async def held(world: World, request_id: str) -> Ticket:
    ticket = await admit(world, request_id)
    await hold(world, ticket)
    return ticket


async def test_who_asks_while_a_change_is_being_read_gets_what_it_changed(sqlite_world: World) -> None:
    # given limits that this process has read, and a change of which it has heard
    world = sqlite_world
    await world.limit("rpm", 100)
    principal = await world.principal()
    policies = world.billing.policies
    await policies.policy(principal, "m")
    await world.limit("rpm", 1)
    # when many ask at once, one of whom reads
    found = await asyncio.gather(*(policies.policy(principal, "m") for _ in range(5)))
    # then none is told the old limit
    assert [policy.admit_rates[0].capacity for policy in found] == [1] * 5


async def test_a_change_that_comes_while_limits_are_read_for_the_first_time_is_not_lost(sqlite_world: World) -> None:
    world = sqlite_world
    await world.limit("rpm", 100)
    principal = await world.principal()
    policies = PolicyStore(world.billing.db, bus=world.billing.bus)
    reading = asyncio.create_task(policies.policy(principal, "m"))
    while not policies._reading:  # noqa: ASYNC110 - turning the loop is the point
        await asyncio.sleep(0)
    await world.limit("rpm", 1)
    await reading
    assert (await policies.policy(principal, "m")).admit_rates[0].capacity == 1
