"""The history of migrations against the models, on both databases."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from billing import db


@pytest.fixture(params=["sqlite", "postgres"])
async def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    from tests.billing.support import create_database

    url: Callable[[str], str] = request.getfixturevalue("postgres_server")
    name = f"m{abs(hash(request.node.nodeid)):x}"
    await create_database(url("postgres"), name)
    return url(name)


async def test_upgrade_makes_what_the_models_say_and_downgrade_leaves_nothing(empty_url: str) -> None:
    await db.upgrade(empty_url)
    await db.check(empty_url)  # raises when a model and its table differ
    await db.upgrade(empty_url)  # a second gateway starting is harmless
    await db.downgrade(empty_url, "base")
    engine = db.create_engine(empty_url)
    async with engine.connect() as connection:
        tables = await connection.run_sync(lambda c: sa.inspect(c).get_table_names())
    await engine.dispose()
    assert set(tables) == {"alembic_version"}


def test_upgrade_works_from_an_empty_folder_without_any_configuration_file(tmp_path: Path) -> None:
    script = "import asyncio; from billing.db import upgrade; asyncio.run(upgrade('weir.db'))"
    root = Path(db.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, check=True, timeout=300)
    assert (tmp_path / "weir.db").stat().st_size > 0


async def test_three_gateways_that_start_together_migrate_once(empty_url: str) -> None:
    script = f"import asyncio; from billing.db import upgrade; asyncio.run(upgrade({empty_url!r}))"
    env = {**os.environ, "PYTHONPATH": str(Path(db.__file__).parents[1])}
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=env, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    errors = [(await process.communicate())[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
    await db.check(empty_url)


async def test_an_upgrade_of_many_revisions_is_one_transaction(empty_url: str) -> None:
    # A commit in between would let a second gateway in, and each would go on from the revision it had read before.
    commits: list[sa.Connection] = []

    def count(connection: sa.Connection) -> None:
        commits.append(connection)

    event.listen(sa.Engine, "commit", count)
    try:
        await db.upgrade(empty_url)
        assert len(commits) == 1
        await db.downgrade(empty_url, "base")
        assert len(commits) == 2
    finally:
        event.remove(sa.Engine, "commit", count)


@pytest.mark.parametrize("held", [("BEGIN EXCLUSIVE",), ("PRAGMA journal_mode=WAL", "BEGIN IMMEDIATE")])
async def test_a_gateway_waits_for_anothers_migration_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: tuple[str, ...]
) -> None:
    # given another that has just made the file, or is in the middle of its migration
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 1)
    other = sqlite3.connect(tmp_path / "slow.db", isolation_level=None)
    for statement in held:
        other.execute(statement)
    migration = asyncio.create_task(db.upgrade(f"sqlite:///{tmp_path / 'slow.db'}"))
    # when it takes longer than a writer waits for another
    done, _ = await asyncio.wait([migration], timeout=1)
    assert not done, migration.exception()
    # then this one goes on once the other has ended
    other.close()
    await asyncio.wait_for(migration, 120)


async def test_buckets_rolled_up_before_there_were_sums_by_model_are_marked_to_be_done_again(empty_url: str) -> None:
    from billing.tables import RollupMark, UsageRollup

    await db.upgrade(empty_url, "0006")
    engine = db.create_engine(empty_url)
    values = {c.name: 0 if isinstance(c.type, sa.Integer) else "x" for c in UsageRollup.__table__.columns}
    values |= {"batch": False, "bucket": 900}
    async with engine.begin() as connection:
        await connection.execute(sa.insert(UsageRollup).values(**values))
    await db.upgrade(empty_url)
    async with engine.connect() as connection:
        assert list(await connection.scalars(sa.select(RollupMark.bucket))) == [900]
    await engine.dispose()


async def test_quarters_summed_before_there_were_spans_are_in_them(empty_url: str) -> None:
    from billing.tables import UsageByModel, UsageBySpan

    await db.upgrade(empty_url, "0009")
    engine = db.create_engine(empty_url)
    values = {c.name: 0 if isinstance(c.type, sa.Integer) else "x" for c in UsageByModel.__table__.columns}
    rows = [(0, "m", 1), (900, "m", 10**18), (9_900, "n", 5), (10_800, "m", 7)]
    async with engine.begin() as connection:
        for bucket, model, amount in rows:
            row = values | {"bucket": bucket, "model": model, "amount_nano_usd": amount}
            await connection.execute(sa.insert(UsageByModel).values(**row))
    await db.upgrade(empty_url)
    async with engine.connect() as connection:
        columns = (UsageBySpan.bucket, UsageBySpan.model, UsageBySpan.amount_nano_usd)
        found = (await connection.execute(sa.select(*columns).order_by(*columns))).all()
    await engine.dispose()
    assert [tuple(row) for row in found] == [(0, "m", 10**18 + 1), (0, "n", 5), (10_800, "m", 7)]


async def test_tenants_that_were_there_keep_the_service_their_keys_have(empty_url: str) -> None:
    from billing.tables import ApiKey, Project, Tenant

    # given three tenants from before there was a most: of one a live key has the best, of one a revoked key
    await db.upgrade(empty_url, "0007")
    engine, now = db.create_engine(empty_url), datetime(2026, 11, 1, tzinfo=UTC)
    async with engine.begin() as connection:
        for number, (tier, urgency, revoked_at) in enumerate(
            [("default", 1, None), ("priority", 0, None), ("priority", 0, now)]
        ):
            mine = {
                "id": f"ten_{number}",
                "slug": f"t{number}",
                "tenant_id": f"ten_{number}",
                "project_id": f"p{number}",
            }
            mine |= {
                "max_service_tier": tier,
                "max_priority": urgency,
                "revoked_at": revoked_at,
                "public_id": f"x{number}",
            }
            for table in (Tenant, Project, ApiKey):
                known = {"id": mine["id"] if table is Tenant else f"p{number}"}
                values = {**{c.name: _filler(c, now) for c in table.__table__.columns}, **mine, **known}
                names = {c.name for c in table.__table__.columns} - (
                    {"max_service_tier", "max_priority"} if table is Tenant else set()
                )
                await connection.execute(
                    sa.insert(table.__table__).values({name: values[name] for name in names}).inline()
                )
    # when they are brought up
    await db.upgrade(empty_url)
    # then each may give what its live keys have
    async with engine.connect() as connection:
        rows = await connection.execute(sa.select(Tenant.max_service_tier, Tenant.max_priority).order_by(Tenant.id))
        assert [tuple(row) for row in rows] == [("default", 1), ("priority", 0), ("default", 1)]
    await engine.dispose()


def _filler(column: sa.Column[Any], now: datetime) -> Any:
    if column.nullable:
        return None
    kinds: dict[type, Any] = {sa.Integer: 0, sa.LargeBinary: b"x", sa.JSON: {}, sa.Boolean: False}
    for kind, value in kinds.items():
        if isinstance(column.type, kind):
            return value
    if isinstance(column.type, sa.Enum):
        return column.type.enums[0]
    return now if isinstance(column.type, (sa.DateTime, db.UtcDateTime)) else "x"
