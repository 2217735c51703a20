"""What a dead gateway leaves behind: booked for the tokens delivered, released, once."""

from __future__ import annotations

import asyncio

import pytest

from billing.entry import Entry
from billing.limits.ticket import HoldTerms, Ticket
from billing.prices import TokenCounts
from billing.tables import EntryStatus
from tests.billing.support import World, admit, counter, entry_for, finish, hold, rows_of


async def abandoned(world: World, request_id: str, *, prompt: int, output: int) -> Ticket:
    """A stream whose process dies after a heartbeat: its hold and lease expire."""
    ticket = await admit(world, request_id)
    ticket.endpoint, ticket.upstream, ticket.end_user, ticket.stream = "responses", "local", "u", True
    await hold(world, ticket, prompt=10, output=1_000, slice_tokens=100)
    if prompt or output:
        ticket.note(prompt_tokens=prompt, output_tokens=output)
        await world.billing.admission.extend(ticket, 0)
    await world.billing.redis.zadd(ticket.holds_key, {request_id: 1})
    return ticket


@pytest.fixture
async def limited(world: World) -> World:
    await world.limit("budget_month", 10**9)
    await world.limit("tpm", 10**6)
    await world.limit("concurrency", 5)
    return world


async def test_a_stream_cut_off_is_booked_for_the_tokens_of_its_last_heartbeat(limited: World) -> None:
    ticket = await abandoned(limited, "r1", prompt=10, output=60)
    assert await limited.billing.reaper.reap() == 1
    (row,) = await rows_of(limited.billing.db)
    assert (row.status, row.origin, row.input_tokens, row.output_tokens) == (EntryStatus.INTERRUPTED, "reaper", 10, 60)
    assert (row.endpoint, row.upstream, row.end_user, row.stream) == ("responses", "local", "u", True)
    assert row.amount_nano_usd == 10 * 1_000 + 60 * 2_000
    assert row.accepted_at == ticket.accepted_at
    assert await counter(limited) == (row.amount_nano_usd, 0)
    assert await limited.billing.redis.zcard(ticket.policy.leases[0].key) == 0
    assert (await limited.billing.reconciler.check()).clean


async def test_one_that_died_while_queued_is_charged_nothing(limited: World) -> None:
    await abandoned(limited, "r1", prompt=0, output=0)
    await limited.billing.reaper.reap()
    (row,) = await rows_of(limited.billing.db)
    assert (row.amount_nano_usd, row.input_tokens) == (0, 0)


async def test_one_that_died_after_prefill_is_charged_its_prompt_only(limited: World) -> None:
    await abandoned(limited, "r1", prompt=10, output=0)
    await limited.billing.reaper.reap()
    (row,) = await rows_of(limited.billing.db)
    assert row.amount_nano_usd == 10 * 1_000


async def test_one_that_died_between_booking_and_settling_stands_as_it_was_booked(limited: World) -> None:
    ticket = await abandoned(limited, "r1", prompt=10, output=60)
    await limited.billing.ledger.write([entry_for(ticket, prompt=10, output=75)])
    assert await limited.billing.reaper.reap() == 1
    (row,) = await rows_of(limited.billing.db)
    assert (row.status, row.output_tokens) == (EntryStatus.OK, 75)
    assert await counter(limited) == (row.amount_nano_usd, 0)


async def test_living_holds_are_left_alone(limited: World) -> None:
    ticket = await admit(limited, "r1")
    await hold(limited, ticket)
    assert await limited.billing.reaper.reap() == 0
    assert await rows_of(limited.billing.db) == []
    await finish(limited, ticket)


async def test_a_hold_falls_to_one_of_many_reapers(limited: World) -> None:
    for i in range(5):
        await abandoned(limited, f"r{i}", prompt=10, output=i)
    counts = await asyncio.gather(*(limited.billing.reaper.reap() for _ in range(4)))
    assert sum(counts) == 5
    assert len(await rows_of(limited.billing.db)) == 5
    assert await limited.billing.reaper.reap() == 0


async def test_a_reaper_that_died_half_way_is_followed_by_another(limited: World) -> None:
    # given a reaper that booked and then died: the claim has run out, the hold is still there
    ticket = await abandoned(limited, "r1", prompt=10, output=60)
    settle = limited.billing.reaper._settle

    async def dies(*_: object) -> None:
        raise asyncio.CancelledError

    limited.billing.reaper._settle = dies
    with pytest.raises(asyncio.CancelledError):
        await limited.billing.reaper.reap()
    limited.billing.reaper._settle = settle
    assert await limited.billing.reaper.reap() == 0  # the claim protects it for a while
    await limited.billing.redis.zadd(ticket.holds_key, {"r1": 1})
    assert await limited.billing.reaper.reap() == 1
    (row,) = await rows_of(limited.billing.db)
    assert await counter(limited) == (row.amount_nano_usd, 0)


async def test_after_redis_was_away_owners_get_to_renew_before_the_reaper_takes(limited: World) -> None:
    await abandoned(limited, "r1", prompt=10, output=60)
    reaper = limited.billing.reaper
    redis = reaper._redis

    class Away:
        async def time(self) -> None:
            raise ConnectionError("away")

    reaper._redis = Away()  # type: ignore[assignment]
    with pytest.raises(ConnectionError):
        await reaper.reap()
    reaper._redis = redis
    assert await reaper.reap() == 0
    reaper._quiet_until = 0.0
    assert await reaper.reap() == 1


async def test_a_hold_that_cannot_be_read_does_not_keep_the_others(limited: World) -> None:
    broken = await abandoned(limited, "a-broken", prompt=10, output=1)
    await limited.billing.redis.hset(broken.hold_key, "meta", b"from a version to come")
    odd = await abandoned(limited, "odd", prompt=0, output=0)
    await limited.billing.redis.hset(odd.hold_key, "cached", 7)  # more than was read: a gateway's slip
    await abandoned(limited, "sound", prompt=10, output=5)
    assert await limited.billing.reaper.reap() == 2
    assert limited.billing.reaper.num_failed == 1
    assert {r.request_id for r in await rows_of(limited.billing.db)} == {"odd", "sound"}


async def hit_hold(world: World, request_id: str, *, share_ppm: int, exact_nano: int | None = None) -> Ticket:
    """A hold for an answer served again, of a process that dies: an exact price, or a stream's that follows another."""
    ticket = await admit(world, request_id)
    rates = (await world.billing.prices.rates(world.tenant.id, "m", at=ticket.accepted_at)).shared(share_ppm)
    prompt, output = (0, 0) if exact_nano is not None else (10, 100)
    terms = HoldTerms(
        prompt_tokens=prompt, max_output_tokens=output, rates=rates, hit="single_flight", exact_nano=exact_nano
    )
    await world.billing.admission.hold(ticket, terms)
    if exact_nano is None:
        ticket.note(prompt_tokens=10, output_tokens=40)
        await world.billing.admission.extend(ticket, 0)
    await world.billing.redis.zadd(ticket.holds_key, {request_id: 1})
    return ticket


async def test_a_follower_cut_off_is_booked_as_the_hit_it_was(limited: World) -> None:
    # given a stream that followed another's generation at half price when its process died
    await hit_hold(limited, "r1", share_ppm=500_000)
    assert await limited.billing.reaper.reap() == 1
    # then its row has no token computed, half of what it was shown charged, and the rest saved
    (row,) = await rows_of(limited.billing.db)
    assert (row.kind, row.cache_outcome, row.status) == ("cache_hit", "single_flight", EntryStatus.INTERRUPTED)
    assert (row.input_tokens, row.output_tokens, row.saved_input_tokens, row.saved_output_tokens) == (0, 0, 10, 40)
    assert row.amount_nano_usd == row.saved_nano_usd == 10 * 500 + 40 * 1_000
    assert await counter(limited) == (row.amount_nano_usd, 0)
    assert (await limited.billing.reconciler.check()).clean


async def test_a_hit_whose_row_was_never_written_is_charged_nothing(limited: World) -> None:
    await hit_hold(limited, "r1", share_ppm=1_000_000, exact_nano=777)
    assert await counter(limited) == (777, 777)
    await limited.billing.reaper.reap()
    (row,) = await rows_of(limited.billing.db)
    assert (row.kind, row.amount_nano_usd, row.saved_output_tokens) == ("cache_hit", 0, 0)
    assert await counter(limited) == (0, 0)


async def test_a_hits_end_that_turns_up_later_is_a_correction_to_the_whole(limited: World) -> None:
    # given a follower that the reaper has booked half way
    ticket = await hit_hold(limited, "r1", share_ppm=500_000)
    await limited.billing.reaper.reap()
    assert ticket.terms is not None
    # when the journal of its process brings the row of its end
    end = Entry.cache_hit(
        request_id="r1",
        principal=ticket.principal,
        endpoint=ticket.endpoint,
        model="m",
        accepted_at=ticket.accepted_at,
        saved=TokenCounts.of(prompt_tokens=10, completion_tokens=90),
        rates=ticket.terms.rates,
        cache_outcome="single_flight",
    )
    await limited.billing.ledger.write([end])
    # then both rows together are that end
    rows = await rows_of(limited.billing.db)
    assert [row.kind for row in rows] == ["cache_hit", "correction"]
    for name in ("amount_nano_usd", "saved_input_tokens", "saved_output_tokens", "saved_nano_usd"):
        assert sum(getattr(row, name) for row in rows) == getattr(end, name) > 0


async def test_a_hold_given_up_is_made_anew_on_other_terms(limited: World) -> None:
    # given a follower's hold at half price
    ticket = await hit_hold(limited, "r1", share_ppm=500_000)
    assert (await counter(limited))[1] > 0
    # when it is given up
    await limited.billing.admission.unhold(ticket)
    # then nothing is held, the lease stays, and a whole generation can be held and settled
    assert await counter(limited) == (0, 0)
    assert await limited.billing.redis.zcard(ticket.policy.leases[0].key) == 1
    await hold(limited, ticket, prompt=10, output=100)
    assert (await counter(limited))[0] >= 10 * 1_000 + 100 * 2_000
    await finish(limited, ticket)
    assert (await counter(limited))[1] == 0
    await limited.billing.ledger.replay()  # where a slow commit sent it to the journal
    assert (await limited.billing.reconciler.check()).clean
