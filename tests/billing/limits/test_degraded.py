"""Redis away, frozen, emptied, and back: the stated policy, and no drift once reseeded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from billing.errors import HoldLost, Invalid, LimitsUnavailable, QuotaDenied
from billing.limits.local import LocalLimiter
from billing.limits.policy import Rule
from billing.limits.ticket import HoldTerms
from billing.quotas.registry import quota_named
from billing.secrets import ServerSecret
from billing.service import Billing, BillingSettings, refuse_evicting_redis
from tests.billing.support import (
    FakeClock,
    FakeMonotonic,
    ValkeyProcess,
    World,
    admit,
    counter,
    finish,
    hold,
    make_world,
)

DEADLINE_S = 2.0


@pytest.fixture
async def away(
    own_valkey: ValkeyProcess, sqlite_url: str, secret: ServerSecret, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[World]:
    """A world on a Valkey of its own, two replicas, which the test may kill."""
    redis = Redis(unix_socket_path=own_valkey.socket, retry=None, socket_timeout=600)
    settings = BillingSettings(
        database_url=sqlite_url,
        journal=tmp_path / "journal",
        replicas=2,
        commit_deadline_s=60.0,
        redis_deadline_s=DEADLINE_S,
    )
    billing = Billing(settings, redis, secret, clock=clock)
    yield await make_world(billing)
    await billing.stop()
    await redis.aclose()


async def back(world: World) -> None:
    """Until the next probe finds Redis there again."""
    async with asyncio.timeout(60):
        while world.billing.admission.degraded:
            await asyncio.sleep(0.05)
            await world.billing.admission.release(await admit(world, f"probe-{time.monotonic_ns()}", model="probe"))


async def test_rates_and_concurrency_are_divided_by_the_replicas_while_redis_is_away(
    away: World, own_valkey: ValkeyProcess
) -> None:
    await away.limit("rpm", 10)
    await away.limit("concurrency", 4)
    await away.principal()
    own_valkey.kill()
    tickets = [await admit(away, f"r{i}") for i in range(2)]
    assert all(t.degraded for t in tickets)
    with pytest.raises(QuotaDenied) as refusal:
        await admit(away, "third")
    assert (refusal.value.limit, refusal.value.degraded) == ("concurrency", True)
    for ticket in tickets:
        await away.billing.admission.release(ticket)
    for i in range(3):
        await away.billing.admission.release(await admit(away, f"s{i}"))
    with pytest.raises(QuotaDenied) as refusal:
        await admit(away, "sixth")
    assert refusal.value.limit == "rpm"


async def test_the_local_limiter_is_warm_when_redis_goes_away(away: World, own_valkey: ValkeyProcess) -> None:
    await away.limit("rpm", 10)
    for i in range(5):
        await admit(away, f"r{i}")
    own_valkey.kill()
    with pytest.raises(QuotaDenied):  # five of its share of five are used
        await admit(away, "sixth")


async def test_a_hard_budget_fails_closed_and_names_our_fault(away: World, own_valkey: ValkeyProcess) -> None:
    await away.limit("budget_month", 10**12)
    await away.principal()
    own_valkey.kill()
    ticket = await admit(away, "r1")
    with pytest.raises(LimitsUnavailable) as refusal:
        await hold(away, ticket)
    assert refusal.value.retry_after_s >= 1
    assert away.billing.admission.num_live == 0


async def test_without_a_budget_requests_go_on_while_redis_is_away(away: World, own_valkey: ValkeyProcess) -> None:
    await away.limit("rpm", 10)
    await away.principal()
    own_valkey.kill()
    ticket = await admit(away, "r1")
    assert (await hold(away, ticket, output=77)).granted_output_tokens == 77


async def test_an_answer_served_again_takes_its_exact_price_from_the_grace_and_no_tokens(
    own_valkey: ValkeyProcess, sqlite_url: str, secret: ServerSecret, clock: FakeClock, tmp_path: Path
) -> None:
    redis = Redis(unix_socket_path=own_valkey.socket, retry=None)
    settings = BillingSettings(database_url=sqlite_url, journal=tmp_path / "journal")
    billing = Billing(settings, redis, secret, clock=clock)
    world = await make_world(billing, grace_nano_usd=1_000)
    await world.limit("budget_month", 10**9)
    await world.limit("tpm", 1)
    await world.principal()
    # given a grace of 1,000 nano-USD while Redis is away
    own_valkey.kill()
    for request_id, price, passes in (("r1", 600, True), ("r2", 401, False), ("r3", 400, True), ("r4", 1, False)):
        ticket = await admit(world, request_id)
        rates = await billing.prices.rates(world.tenant.id, "m", at=ticket.accepted_at)
        terms = HoldTerms(prompt_tokens=0, max_output_tokens=0, rates=rates, hit="exact", exact_nano=price)
        # then hits pass as long as it has their very price, and no rate in tokens stands in their way
        if passes:
            assert (await billing.admission.hold(ticket, terms)).degraded
        else:
            with pytest.raises(LimitsUnavailable):
                await billing.admission.hold(ticket, terms)
    await billing.stop()
    await redis.aclose()


async def test_a_grace_allowance_is_spent_to_its_end_and_counted_when_redis_is_back(
    own_valkey: ValkeyProcess, sqlite_url: str, secret: ServerSecret, clock: FakeClock, tmp_path: Path
) -> None:
    redis = Redis(unix_socket_path=own_valkey.socket, retry=None)
    settings = BillingSettings(database_url=sqlite_url, journal=tmp_path / "journal")
    billing = Billing(settings, redis, secret, clock=clock)
    world = await make_world(billing, grace_nano_usd=100 * 2_000)
    await world.limit("budget_month", 10**9)
    before = await admit(world, "before")
    await hold(world, before, prompt=0, output=50)
    await finish(world, before, prompt=0, output=50)
    # while Redis is away two requests of 40 output tokens fit into a grace of 100, a third does not
    own_valkey.kill()
    tickets = [await admit(world, f"r{i}") for i in range(2)]
    for ticket in tickets:
        await hold(world, ticket, prompt=0, output=40)
    with pytest.raises(LimitsUnavailable):
        await hold(world, await admit(world, "r3"), prompt=0, output=40)
    billing.ledger.start()
    for ticket in tickets:
        await finish(world, ticket, prompt=0, output=30)
    assert billing.admission.num_pending_settles == 2
    # it comes back empty: the counter is seeded from the ledger, the late settles are in that sum already
    own_valkey.start()
    await billing.ledger.replay()
    await back(world)
    after = await admit(world, "after")
    await hold(world, after, prompt=0, output=10)
    await billing.admission.beat()
    await finish(world, after, prompt=0, output=10)
    assert billing.admission.num_pending_settles == 0
    assert await counter(world) == ((50 + 30 + 30 + 10) * 2_000, 0)
    assert (await billing.reconciler.check()).clean
    await billing.stop()
    await redis.aclose()


async def test_a_counter_seeded_while_rows_lay_in_a_journal_is_raised_after_the_replay(
    sqlite_world: World,
) -> None:
    # given a row in the journal, not in SQL, when the counter is started
    world = sqlite_world
    await world.limit("tpm", 10**6)
    ticket = await admit(world, "r1")
    await hold(world, ticket, prompt=0, output=100)
    await finish(world, ticket, prompt=0, output=100)  # the ledger's tasks do not run: the journal takes it
    await world.limit("budget_month", 10**9)
    second = await admit(world, "r2")
    await hold(world, second, prompt=0, output=1)
    assert await counter(world) == (2_000, 2_000)
    # when it is replayed
    await world.billing.ledger.replay()
    assert await world.billing.reconciler.raise_counters() == 1
    # then the counter has it, beside what is held
    assert await counter(world) == (100 * 2_000 + 2_000, 2_000)


async def test_a_frozen_redis_costs_one_request_its_deadline_and_the_next_ones_nothing(
    away: World, own_valkey: ValkeyProcess
) -> None:
    await away.limit("rpm", 100)
    await away.limit("tpm", 100_000)
    await away.principal()
    await away.billing.prices.rates(away.tenant.id, "m")
    own_valkey.freeze()
    try:
        started = time.monotonic()
        ticket = await admit(away, "r1")
        await hold(away, ticket)
        first_s = time.monotonic() - started
        started = time.monotonic()
        for i in range(10):
            await hold(away, await admit(away, f"s{i}"))
        ten_more_s = time.monotonic() - started
    finally:
        own_valkey.thaw()
    assert DEADLINE_S <= first_s < 2 * DEADLINE_S  # one for both stages, and a slow machine's slack
    assert ten_more_s < DEADLINE_S


async def test_a_redis_that_lost_its_data_is_reseeded_and_open_holds_are_made_anew(
    away: World, own_valkey: ValkeyProcess
) -> None:
    world = away
    world.billing.ledger.start()
    await world.limit("budget_month", 10**9)
    done = await admit(world, "done")
    await hold(world, done, prompt=0, output=100)
    await finish(world, done, prompt=0, output=100)
    open_ticket = await admit(world, "open")
    await hold(world, open_ticket, prompt=0, output=500, slice_tokens=200)
    # when Redis restarts empty, and the stream's heartbeat comes
    own_valkey.kill()
    own_valkey.start()
    open_ticket.note(prompt_tokens=0, output_tokens=10)
    await world.billing.admission.extend(open_ticket)  # finds its connection gone
    await back(world)
    await world.billing.admission.extend(open_ticket)
    # then spending and hold are as before
    assert await counter(world) == ((100 + 200) * 2_000, 200 * 2_000)
    await finish(world, open_ticket, prompt=0, output=123)
    assert await counter(world) == ((100 + 123) * 2_000, 0)
    found = await world.billing.reconciler.check()
    assert found.clean, found


async def test_a_stream_begun_while_redis_was_away_gets_its_hold_when_it_is_back(
    away: World, own_valkey: ValkeyProcess
) -> None:
    await away.limit("tpm", 100_000)
    await away.limit("concurrency", 10)
    await away.principal()
    own_valkey.kill()
    ticket = await admit(away, "r1")
    await hold(away, ticket, output=500)
    assert ticket.degraded
    own_valkey.start()
    await back(away)
    await away.billing.admission.beat()
    assert not ticket.degraded
    assert await away.billing.redis.exists(ticket.hold_key)
    assert await away.billing.redis.zcard(ticket.policy.leases[0].key) == 1


async def test_a_counter_that_is_missing_is_not_read_as_zero_while_sql_is_away_too(sqlite_world: World) -> None:
    from sqlalchemy.exc import OperationalError

    world = sqlite_world
    await world.limit("budget_month", 10**9)
    await world.limit("rpm", 1)
    ticket = await admit(world, "r1")
    rates = await world.billing.prices.rates(world.tenant.id, "m")
    read = world.billing.db.read

    def broken() -> object:
        raise OperationalError("SELECT", {}, OSError("connection refused"))

    world.billing.db.read = broken  # type: ignore[assignment, method-assign]

    with pytest.raises(LimitsUnavailable):
        await world.billing.admission.hold(ticket, HoldTerms(prompt_tokens=1, max_output_tokens=1, rates=rates))
    world.billing.db.read = read  # type: ignore[method-assign]
    await admit(world, "r2")  # and what admission took was given back


async def test_a_hold_that_the_reaper_took_is_lost_to_its_stream(sqlite_world: World) -> None:
    world = sqlite_world
    await world.limit("budget_month", 10**9)
    ticket = await admit(world, "r1")
    await hold(world, ticket)
    await world.billing.redis.zadd(ticket.holds_key, {"r1": 1})
    assert await world.billing.reaper.reap() == 1
    with pytest.raises(HoldLost):
        await world.billing.admission.extend(ticket)
    assert ticket.lost
    assert world.billing.admission.num_live == 0


async def test_a_redis_that_would_evict_is_refused(redis: Redis) -> None:
    await refuse_evicting_redis(redis)
    await redis.config_set("maxmemory", "100mb")
    for policy in ("allkeys-lru", "volatile-ttl"):
        await redis.config_set("maxmemory-policy", policy)
        with pytest.raises(Invalid, match=policy):
            await refuse_evicting_redis(redis)
    await redis.config_set("maxmemory-policy", "noeviction")
    await refuse_evicting_redis(redis)
    await redis.config_set("maxmemory", "0")


def rule(name: str, hard: int, key: str = "k") -> Rule:
    return Rule(quota=quota_named(name), scope="key", scope_id="key_1", model=None, hard=hard, soft=None, key=key)


def test_a_full_local_limiter_refuses_keys_it_has_not_met(monotonic: FakeMonotonic) -> None:
    limiter = LocalLimiter(monotonic=monotonic, max_keys=2)
    for key in ("a", "b"):
        assert limiter.take([rule("rpm", 10, key)], 1, 1) is None
    refused = limiter.take([rule("rpm", 10, "c")], 1, 1)
    assert refused is not None
    monotonic.advance(61)  # the old ones have drained
    assert limiter.take([rule("rpm", 10, "c")], 1, 1) is None


def test_the_local_limiter_takes_all_or_nothing(monotonic: FakeMonotonic) -> None:
    limiter = LocalLimiter(monotonic=monotonic)
    wide, narrow = rule("rpm", 100, "wide"), rule("rpm", 1, "narrow")
    assert limiter.take([wide, narrow], 1, 1) is None
    for _ in range(5):
        assert limiter.take([wide, narrow], 1, 1) is not None
    for _ in range(99):
        assert limiter.take([wide], 1, 1) is None
    assert limiter.take([wide], 1, 1) is not None


def test_a_share_below_one_request_admits_none(monotonic: FakeMonotonic) -> None:
    refused = LocalLimiter(monotonic=monotonic).take([rule("rpm", 1)], 1, 2)
    assert refused is not None
    assert refused[1] == 60.0
