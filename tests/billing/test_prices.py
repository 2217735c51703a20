"""Prices: versions, overrides, discounts; an unknown one refuses, a zero must be written down."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from billing.errors import Conflict, Forbidden, Invalid, PolicyUnavailable, UnknownPrice
from billing.money import parse_percent, parse_usd
from billing.prices import PriceBook, Rates, TokenCounts, end_price, set_discount, set_gpu_price, set_price
from tests.billing.support import OPERATOR, START, FakeClock, FakeMonotonic, World

DAY = timedelta(days=1)


async def put(world: World, **fields: object) -> None:
    async with world.billing.db.begin() as session:
        await set_price(session, OPERATOR, **{"input_nano": 1, "output_nano": 1, **fields})  # type: ignore[arg-type]


async def test_cached_tokens_are_billed_at_their_own_rate_and_never_twice(world: World) -> None:
    rates = await world.billing.prices.rates(world.tenant.id, "m")
    amounts = rates.amounts(TokenCounts.of(prompt_tokens=1000, cached_tokens=900))
    assert (amounts.input, amounts.cached_input, amounts.total) == (100_000, 90_000, 190_000)


@pytest.mark.parametrize("bad", [(10, 11, 0), (-1, 0, 0), (1, 0, -1)])
def test_a_usage_that_does_not_fit_together_is_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(Invalid):
        TokenCounts.of(prompt_tokens=bad[0], cached_tokens=bad[1], completion_tokens=bad[2])


async def test_a_model_without_a_price_is_refused_and_never_free(world: World) -> None:
    with pytest.raises(UnknownPrice):
        await world.billing.prices.rates(world.tenant.id, "unpriced")


async def test_the_price_in_force_at_the_moment_of_acceptance_counts(sqlite_world: World) -> None:
    await put(sqlite_world, model="v", input_nano=10, effective_from=START - 10 * DAY)
    await put(sqlite_world, model="v", input_nano=20, effective_from=START)
    book = sqlite_world.billing.prices
    assert (await book.rates("t", "v", at=START - timedelta(microseconds=1))).input == 10
    assert (await book.rates("t", "v", at=START)).input == 20
    with pytest.raises(UnknownPrice):
        await book.rates("t", "v", at=START - 11 * DAY)


async def test_a_price_that_ran_out_uncovers_nothing_older(sqlite_world: World) -> None:
    await put(sqlite_world, model="v", input_nano=10, effective_from=START - 10 * DAY)
    await put(sqlite_world, model="v", input_nano=20, effective_from=START - 5 * DAY, effective_to=START)
    book = sqlite_world.billing.prices
    assert (await book.rates("t", "v", at=START - DAY)).input == 20
    with pytest.raises(UnknownPrice):
        await book.rates("t", "v", at=START)


async def test_an_override_is_final_and_a_discount_comes_off_the_list_price(sqlite_world: World) -> None:
    world = sqlite_world
    await put(world, model="v", input_nano=parse_usd("0.0375"), effective_from=START - DAY)
    async with world.billing.db.begin() as session:
        await set_discount(session, OPERATOR, "acme", ppm=parse_percent("15"), effective_from=START - DAY)
        await set_discount(session, OPERATOR, "acme", ppm=parse_percent("50"), model="m", effective_from=START - DAY)
    rates = await world.billing.prices.rates(world.tenant.id, "v", at=START)
    assert rates.amounts(TokenCounts(input=1_000_000)).input == parse_usd("0.031875")
    half = await world.billing.prices.rates(world.tenant.id, "m", at=START)
    assert half.amounts(TokenCounts(input=1_000_000)).input == 10**9 // 2
    await put(world, model="v", tenant="acme", input_nano=7, effective_from=START - DAY)
    override = await world.billing.prices.rates(world.tenant.id, "v", at=START)
    assert (override.input, override.discount_ppm) == (7, 0)
    assert (await world.billing.prices.rates("another", "v", at=START)).discount_ppm == 0


async def test_a_tier_costs_its_own_price_or_the_default_one(sqlite_world: World) -> None:
    await put(sqlite_world, model="v", input_nano=10, effective_from=START - DAY)
    await put(sqlite_world, model="v", input_nano=25, service_tier="priority", effective_from=START - DAY)
    book = sqlite_world.billing.prices
    found = [
        (await book.rates("t", "v", service_tier=tier, at=START)).input for tier in ("default", "priority", "flex")
    ]
    assert found == [10, 25, 10]


async def test_a_change_is_in_force_at_once(sqlite_world: World) -> None:
    await sqlite_world.billing.prices.rates("t", "m", at=START)
    await put(sqlite_world, model="m", input_nano=5, effective_from=START - DAY)
    assert (await sqlite_world.billing.prices.rates("t", "m", at=START)).input == 5


async def test_prices_serve_on_while_sql_is_away_but_not_when_never_read(
    sqlite_world: World, monotonic: FakeMonotonic, clock: FakeClock
) -> None:
    database = sqlite_world.billing.db
    warm = PriceBook(database, clock=clock, monotonic=monotonic)
    await warm.rates("t", "m")
    read = database.read

    def broken() -> object:
        raise OperationalError("SELECT", {}, OSError("connection refused"))

    database.read = broken  # type: ignore[assignment, method-assign]
    monotonic.advance(120)
    assert (await warm.rates("t", "m")).input == 10**9
    with pytest.raises(PolicyUnavailable):
        await PriceBook(database, clock=clock).rates("t", "m")
    database.read = read  # type: ignore[method-assign]


async def test_a_change_that_could_not_be_read_at_first_is_in_force_a_second_later(
    sqlite_world: World, monotonic: FakeMonotonic, clock: FakeClock
) -> None:
    database = sqlite_world.billing.db
    book = PriceBook(database, bus=sqlite_world.billing.bus, clock=clock, monotonic=monotonic)
    await book.rates("t", "m", at=START)
    read = database.read

    def locked() -> object:
        raise OperationalError("SELECT", {}, OSError("database is locked"))

    await put(sqlite_world, model="m", input_nano=5, effective_from=START)
    database.read = locked  # type: ignore[assignment, method-assign]
    assert (await book.rates("t", "m", at=START)).input == 10**9
    database.read = read  # type: ignore[method-assign]
    monotonic.advance(1)
    assert (await book.rates("t", "m", at=START)).input == 5


async def test_who_asks_while_a_change_is_being_read_gets_what_it_changed(sqlite_world: World) -> None:
    prices = sqlite_world.billing.prices
    await prices.rates("t", "m", at=START)
    await put(sqlite_world, model="m", input_nano=5, effective_from=START)
    found = await asyncio.gather(*(prices.rates("t", "m", at=START) for _ in range(5)))
    assert [rates.input for rates in found] == [5] * 5


async def test_two_prices_cannot_start_at_the_same_moment(sqlite_world: World) -> None:
    await put(sqlite_world, model="v", effective_from=START)
    with pytest.raises(Conflict):
        await put(sqlite_world, model="v", effective_from=START)


async def test_only_an_operator_sets_prices_and_within_bounds(sqlite_world: World) -> None:
    world = sqlite_world
    async with world.billing.db.begin() as session:
        with pytest.raises(Forbidden):
            await set_price(session, world.admin, model="v", input_nano=1, output_nano=1)
        for bad in (-1, 10**15 + 1):
            with pytest.raises(Invalid):
                await set_price(session, OPERATOR, model="v", input_nano=bad, output_nano=1)
        price = await set_price(session, OPERATOR, model="v", input_nano=1, output_nano=1, effective_from=START)
        with pytest.raises(Invalid):
            await end_price(session, OPERATOR, price.id, at=START)
        await end_price(session, OPERATOR, price.id, at=START + DAY)


async def test_gpu_time_costs_its_share_of_the_hour_in_force(sqlite_world: World) -> None:
    world = sqlite_world
    async with world.billing.db.begin() as session:
        await set_gpu_price(session, OPERATOR, upstream="local", hour_nano=parse_usd("3.60"), effective_from=START)
    cost, version = await world.billing.prices.cost_nano_usd("local", 1_500_000, at=START + DAY)
    assert cost == parse_usd("0.0015")
    assert version is not None
    assert await world.billing.prices.cost_nano_usd("local", 1_500_000, at=START - DAY) == (0, None)


@given(
    st.integers(0, 200_000), st.integers(0, 200_000), st.integers(0, 10**13), st.integers(0, 10**13),
    st.integers(0, 10**13), st.integers(0, 1_000_000), st.lists(st.integers(1, 5000), max_size=6), st.booleans(),
)  # fmt: skip
def test_what_is_held_always_covers_what_is_charged(
    prompt: int, cached: int, rate_in: int, rate_cached: int, rate_out: int, ppm: int, slices: list[int], batch: bool
) -> None:
    rates = Rates(
        price_id="p", model="m", input=rate_in, cached_input=rate_cached, output=rate_out, batch_input=rate_in,
        batch_output=rate_out, discount_ppm=ppm,
    )  # fmt: skip
    held = rates.hold_prompt(prompt, batch=batch) + sum(rates.hold_output(tokens, batch=batch) for tokens in slices)
    tokens = TokenCounts.of(
        prompt_tokens=prompt, cached_tokens=min(cached, prompt), completion_tokens=sum(slices), batch=batch
    )
    assert rates.amounts(tokens).total <= held
