"""The database: engine and sessions from a URL, naming rules, column types, and the programmatic upgrade.

SQLite (WAL, synchronous=FULL, foreign keys on) is the embedded default, PostgreSQL by asyncpg the production one; one
Alembic history serves both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

from billing.errors import Invalid

BUSY_TIMEOUT_MS = 5_000
MIGRATION_WAIT_S = 600  # for another gateway's migration: its host may be slow and its ledger large
SQLITE_PRAGMAS = (
    "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY_TIMEOUT_MS}", "analysis_limit=1000",
)  # fmt: skip
_WRITES = "weir_writes"

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, stored in UTC: `timestamptz` on PostgreSQL, naive text on SQLite. Refuses naive values."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r}: every moment in the books has a time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def enum_column(kind: type[StrEnum]) -> sa.Enum:
    """A StrEnum stored by value in a VARCHAR: new members need no migration."""
    return sa.Enum(
        kind, native_enum=False, create_constraint=False, length=32, values_callable=lambda e: [m.value for m in e]
    )


class Base(DeclarativeBase):
    """Base of every table; constraint names are made by rule, so that a migration can name them."""

    metadata = sa.MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime(),
        int: sa.BigInteger().with_variant(sa.Integer(), "sqlite"),  # SQLite's INTEGER is 64 bits and may autoincrement
        str: sa.String(),
        bytes: sa.LargeBinary(),
        dict[str, Any]: sa.JSON(),
        dict[str, str]: sa.JSON(),
        list[str]: sa.JSON(),
    }


def parse_database_url(text: str) -> URL:
    """An async SQLAlchemy URL from `sqlite:///path`, a bare path ending in .db, or `postgresql://…`.

    Raises: Invalid for another database.
    """
    if "://" not in text:
        text = f"sqlite:///{text}"
    url = make_url(text)
    backend = url.get_backend_name()
    if backend == "sqlite":
        return url.set(drivername="sqlite+aiosqlite")
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+asyncpg")
    raise Invalid(f"database_url: {backend!r} is not served; use sqlite or postgresql", param="database_url")


def create_engine(url: str | URL, *, pool_size: int = 5, busy_timeout_s: float | None = None) -> AsyncEngine:
    """An async engine whose connections carry the settings the ledger's durability rests on.

    `busy_timeout_s`: how long a writer waits for another on SQLite, by default `BUSY_TIMEOUT_MS`.
    """
    parsed = parse_database_url(url) if isinstance(url, str) else url
    if parsed.get_backend_name() == "sqlite":
        if parsed.database and parsed.database != ":memory:":
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        busy_timeout_s = BUSY_TIMEOUT_MS / 1000 if busy_timeout_s is None else busy_timeout_s
        engine = create_async_engine(parsed, connect_args={"timeout": busy_timeout_s})
        event.listen(engine.sync_engine, "do_connect", _create_private)
        event.listen(engine.sync_engine, "connect", partial(_set_up_sqlite, busy_timeout_s))
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    return create_async_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=5,
        pool_pre_ping=True,
        connect_args={"timeout": 5, "server_settings": {"timezone": "UTC", "application_name": "weir"}},
    )


def _create_private(_dialect: Any, _record: Any, args: Any, _params: Any) -> None:
    """A new file is its owner's alone; SQLite gives its -wal and -shm the same mode.

    One that is there is never opened: closing it would drop the locks that this process's other connections hold.
    """
    path = str(args[0]) if args else ":memory:"
    if path and path != ":memory:" and not path.startswith("file:"):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _set_up_sqlite(busy_timeout_s: float, dbapi_connection: Any, _record: Any) -> None:
    dbapi_connection.isolation_level = None  # the driver's own BEGIN is deferred: writers would meet SQLITE_BUSY
    dbapi_connection.run_async(_enter_wal)
    cursor = dbapi_connection.cursor()
    for pragma in SQLITE_PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.execute(f"PRAGMA busy_timeout={busy_timeout_s * 1000:.0f}")
    cursor.close()


async def _enter_wal(connection: Any) -> None:
    """Only the first connection ever changes the mode of a file. SQLite does not wait for another that is about to."""
    deadline = time.monotonic() + MIGRATION_WAIT_S
    while True:
        try:
            await connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)
        else:
            return


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


Publisher = Callable[[list["Change"]], Awaitable[None]]


class Change(tuple[str, str]):
    """(kind, id) of something that other processes have in memory: kinds are key, tenant, limits, prices, config."""

    __slots__ = ()

    def __new__(cls, kind: str, id: str) -> Change:
        return super().__new__(cls, (kind, id))


class Database:
    """Sessions for reading and for writing; a write publishes what it changed once it is committed."""

    def __init__(self, url: str | URL, *, pool_size: int = 5) -> None:
        self.engine = create_engine(url, pool_size=pool_size)
        self.dialect = self.engine.dialect.name
        self.publish: Publisher | None = None
        self._reading = async_sessionmaker(self.engine, expire_on_commit=False)
        self._writing = async_sessionmaker(self.engine.execution_options(**{_WRITES: True}), expire_on_commit=False)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncSession]:
        """A transaction that commits at the end, rolls back on an exception, then tells the others what changed."""
        async with self._writing() as session:
            async with session.begin():
                yield session
            changes: list[Change] = session.info.get("changes", [])
        if changes and self.publish is not None:
            await self.publish(changes)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """One snapshot for reading; nothing is committed."""
        async with self._reading() as session:
            yield session

    async def close(self) -> None:
        """Give every connection back."""
        await self.engine.dispose()


def note_change(session: AsyncSession, kind: str, id: str) -> None:
    """Remember that this transaction changes something cached elsewhere; told after the commit."""
    session.info.setdefault("changes", []).append(Change(kind, id))


# By default PostgreSQL takes a plan for any values whatever from a statement's sixth execution on: with it sums over a
# month took 2 s in place of 0.2, a page of requests 0.35 s in place of 0.1 ms. Compiling takes longer than most.
# Groups of ten sums pass the 8 MB they have by default from 15,000 on. 45,000 take 37 MB, and the planner expects seven
# times as many: where twice work_mem would not hold those, it sorts all rows first, 0.83 s in place of 0.6.
_PLANNING = sa.text(
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true),"
    " set_config('work_mem', '128MB', true)"
)


async def plan_for_reports(session: AsyncSession) -> None:
    """The rest of the session's transaction is planned for what it asks; of use where there are millions of rows."""
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(_PLANNING)


async def upgrade(url: str | URL, revision: str = "head") -> None:
    """Bring the database to `revision` with the migrations inside the package.

    Safe to call from several processes: one migrates, the others wait up to `MIGRATION_WAIT_S` and find it done.
    """
    from alembic import command

    async with migrating(url) as connection:
        await connection.run_sync(lambda c: command.upgrade(alembic_config(c), revision))


async def downgrade(url: str | URL, revision: str) -> None:
    """Take the database back to `revision`; `base` empties it. Data in dropped columns is gone."""
    from alembic import command

    async with migrating(url) as connection:
        await connection.run_sync(lambda c: command.downgrade(alembic_config(c), revision))


@asynccontextmanager
async def migrating(url: str | URL) -> AsyncIterator[AsyncConnection]:
    """A connection in one transaction that no other migrator can be in, committed at the end.

    Alembic by itself commits after every revision on SQLite: whoever waited would come in between, and each would then
    go on from the revision it had read before.
    """
    engine = create_engine(url, busy_timeout_s=MIGRATION_WAIT_S)
    try:
        # Begun here, not by Alembic: BEGIN IMMEDIATE on SQLite; on PostgreSQL migrations/env.py takes an advisory lock.
        async with engine.execution_options(**{_WRITES: True}).begin() as connection:
            yield connection
    finally:
        await engine.dispose()


async def check(url: str | URL) -> None:
    """Raises: alembic.util.exc.AutogenerateDiffsDetected when the tables differ from the models."""
    from alembic import command

    engine = create_engine(url)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(lambda c: command.check(alembic_config(c)))
    finally:
        await engine.dispose()


def alembic_config(connection: sa.Connection | None = None) -> Any:
    """Alembic's configuration, pointing at the installed `migrations` package: no file in the working folder needed."""
    import io

    from alembic.config import Config

    import migrations

    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(Path(next(iter(migrations.__path__)))))
    config.set_main_option("file_template", "%%(year)d_%%(month).2d_%%(day).2d_%%(slug)s")
    config.attributes["connection"] = connection
    return config


async def revisions(url: str | URL) -> tuple[str | None, str]:
    """(the database's revision, this version's head); None for an empty database."""
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    engine = create_engine(url)
    try:
        async with engine.connect() as connection:
            current = await connection.run_sync(lambda c: MigrationContext.configure(c).get_current_revision())
    finally:
        await engine.dispose()
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None
    return current, head
