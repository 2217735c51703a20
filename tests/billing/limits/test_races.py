"""Two gateways, one nearly spent budget: never one nano-USD over, never an admitted request missing."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from redis.asyncio import Redis

from billing.entry import Entry
from billing.errors import QuotaDenied
from billing.limits.ticket import Ticket
from billing.secrets import ServerSecret
from billing.service import Billing, BillingSettings
from tests.billing.support import FakeClock, ValkeyProcess, World, counter, entry_for, hold, make_world, rows_of

PRICE = 2_000  # nano-USD an output token


async def two_gateways(
    redises: list[Redis], url: str, secret: ServerSecret, clock: FakeClock, folder: Path
) -> list[World]:
    worlds: list[World] = []
    for i, redis in enumerate(redises):
        settings = BillingSettings(
            database_url=url, journal=folder / f"journal{i}", commit_deadline_s=30.0, redis_deadline_s=30.0
        )
        billing = Billing(settings, redis, secret, clock=clock)
        if not worlds:
            worlds.append(await make_world(billing))
        else:
            first = worlds[0]
            other = World.__new__(World)
            other.__dict__.update(first.__dict__ | {"billing": billing})
            worlds.append(other)
        billing.ledger.start()
    return worlds


async def one_request(world: World, request_id: str, chance: random.Random) -> tuple[Ticket, Entry] | None:
    """Admit, hold, stream in random steps, cut where the budget ends; None when refused."""
    admission = world.billing.admission
    ticket = await admission.open(await world.principal(), "m", request_id)
    try:
        await admission.admit(ticket)
        wanted = chance.randrange(1, 60)
        await hold(world, ticket, prompt=0, output=wanted, slice_tokens=10)
    except QuotaDenied:
        return None
    assert ticket.granted_output_tokens >= min(10, wanted)  # each admitted one gets its first slice
    produced = 0
    while produced < wanted:
        produced = min(wanted, produced + chance.randrange(1, 12), ticket.granted_output_tokens)
        ticket.note(prompt_tokens=0, output_tokens=produced)
        if chance.random() < 0.1:
            break  # the client left
        if ticket.needs_extension:
            await admission.extend(ticket)
        if ticket.at_end and produced >= ticket.granted_output_tokens:
            break  # cut at the last granted token
    entry = entry_for(ticket, prompt=0, output=produced)
    await world.billing.ledger.book(entry)
    await admission.settle(ticket, amount_nano=entry.amount_nano_usd, tokens=entry.total_tokens)
    return ticket, entry


async def race(worlds: list[World], seed: int, requests: int) -> None:
    chance = random.Random(seed)
    budget = chance.randrange(1, 1500) * PRICE + chance.randrange(PRICE)
    await worlds[0].limit("budget_month", budget)
    for world in worlds:  # as a gateway that has been serving: prices, key and limits in memory
        await world.billing.prices.rates(world.tenant.id, "m")
        await world.billing.policies.policy(await world.principal(), "m")
    results = await asyncio.gather(
        *(one_request(worlds[i % 2], f"s{seed}-r{i}", random.Random(seed * 1000 + i)) for i in range(requests))
    )
    admitted = [result[1] for result in results if result is not None]
    rows = await rows_of(worlds[0].billing.db)
    spent = sum(row.amount_nano_usd for row in rows)
    assert sorted(row.request_id for row in rows) == sorted(entry.request_id for entry in admitted)
    assert spent == sum(entry.amount_nano_usd for entry in admitted) <= budget
    assert await counter(worlds[0]) == (spent, 0)


async def run_seeds(
    seeds: range, redises: list[Redis], secret: ServerSecret, clock: FakeClock, fresh: list[str], folder: Path
) -> None:
    for seed in seeds:
        await redises[0].flushall()
        worlds = await two_gateways(redises, fresh[seed - seeds.start], secret, clock, folder / str(seed))
        try:
            await race(worlds, seed, 200)
        finally:
            for world in worlds:
                await world.billing.stop()


@pytest.fixture
async def redises(shared_valkey: ValkeyProcess):  # type: ignore[no-untyped-def]
    clients = [Redis(unix_socket_path=shared_valkey.socket, max_connections=300) for _ in range(2)]
    yield clients
    for client in clients:
        await client.aclose()


def copies(migrated: Path, folder: Path, count: int) -> list[str]:
    import shutil

    urls = []
    for i in range(count):
        path = folder / f"race{i}.db"
        shutil.copy(migrated, path)
        urls.append(f"sqlite:///{path}")
    return urls


async def test_two_gateways_never_pass_a_nearly_spent_budget(
    redises: list[Redis], migrated_sqlite: Path, secret: ServerSecret, clock: FakeClock, tmp_path: Path
) -> None:
    urls = copies(migrated_sqlite, tmp_path, 20)
    await run_seeds(range(20), redises, secret, clock, urls, tmp_path)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
async def test_two_gateways_never_pass_a_nearly_spent_budget_in_500_seeds(
    redises: list[Redis], migrated_sqlite: Path, secret: ServerSecret, clock: FakeClock, tmp_path: Path
) -> None:
    for first in range(1000, 1500, 50):
        folder = tmp_path / str(first)
        folder.mkdir()
        urls = copies(migrated_sqlite, folder, 50)
        await run_seeds(range(first, first + 50), redises, secret, clock, urls, folder)


async def test_fifty_parallel_requests_on_a_cent_spend_at_most_a_cent(
    redises: list[Redis], postgres_url: str, secret: ServerSecret, clock: FakeClock, tmp_path: Path
) -> None:
    # given a budget of $0.01 and 50 requests of up to $0.002 each: 1,000 output tokens, first slice 100
    await redises[0].flushall()
    worlds = await two_gateways(redises, postgres_url, secret, clock, tmp_path)
    await worlds[0].limit("budget_month", 10_000_000)

    async def ask(i: int) -> str:
        world = worlds[i % 2]
        admission = world.billing.admission
        ticket = await admission.open(await world.principal(), "m", f"r{i}")
        await admission.admit(ticket)
        try:
            await hold(world, ticket, prompt=0, output=1_000, slice_tokens=100)
        except QuotaDenied as exc:
            return "refused" if exc.money and exc.retry_after_s else "refused for another reason"
        while ticket.output < 1_000 and not (ticket.at_end and ticket.output >= ticket.granted_output_tokens):
            ticket.note(prompt_tokens=0, output_tokens=min(ticket.granted_output_tokens, ticket.output + 50))
            if ticket.needs_extension:
                await admission.extend(ticket)
        entry = entry_for(ticket, prompt=0, output=ticket.output)
        await world.billing.ledger.book(entry)
        await admission.settle(ticket, amount_nano=entry.amount_nano_usd, tokens=entry.total_tokens)
        return "cut" if ticket.output < 1_000 else "whole"

    outcomes = await asyncio.gather(*(ask(i) for i in range(50)))
    rows = await rows_of(worlds[0].billing.db)
    assert len(rows) == 50 - outcomes.count("refused")
    assert all(row.output_tokens >= 100 for row in rows)
    assert sum(row.amount_nano_usd for row in rows) <= 10_000_000
    for world in worlds:
        await world.billing.stop()
