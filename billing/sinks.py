"""The quick way into the ledger's table: one statement a group on PostgreSQL, one thread hop a group on SQLite.

Through the ORM a group of one cost 3.9 ms of CPU on the two-core reference host, most of it in compiling, result
objects and thread hops; every request waits for this, so it speaks to the drivers themselves. The columns come from
the model: a column that is added there is written here.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Protocol, cast

import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.db import BUSY_TIMEOUT_MS, SQLITE_PRAGMAS, UtcDateTime
from billing.tables import LedgerEntry

Key = tuple[str, int, str, int]
_COLUMNS = [column for column in cast(sa.Table, LedgerEntry.__table__).columns if column.name != "id"]
_NAMES = [column.name for column in _COLUMNS]
_KEY = ("request_id", "attempt", "kind", "seq")


class Sink(Protocol):
    """Inserts what is not there yet and marks its buckets, durably and in one transaction."""

    async def insert(self, rows: Sequence[dict[str, Any]]) -> list[bool]:
        """For each row whether it was inserted. Raises: SQLAlchemy's DataError, IntegrityError, OperationalError."""
        ...

    async def close(self) -> None:
        """Let go of the connection."""
        ...


def sink_for(engine: AsyncEngine) -> Sink:
    """The engine's own kind; it opens a connection of its own, at first use."""
    if engine.dialect.name == "sqlite":
        return SqliteSink(str(engine.url.database))
    return PostgresSink(engine)


class SqliteSink:
    """A connection in a thread of its own: BEGIN IMMEDIATE, the rows, their marks, COMMIT, in one hop."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._connection: sqlite3.Connection | None = None
        places = ", ".join("?" for _ in _NAMES)
        self._insert = f"INSERT INTO ledger_entry ({', '.join(_NAMES)}) VALUES ({places}) ON CONFLICT DO NOTHING"  # noqa: S608
        self._encoders = [_sqlite_encoder(column) for column in _COLUMNS]

    async def insert(self, rows: Sequence[dict[str, Any]]) -> list[bool]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, rows)

    def _write(self, rows: Sequence[dict[str, Any]]) -> list[bool]:
        try:
            return self._write_all(self._connected(), rows)
        except sqlite3.IntegrityError as exc:
            raise IntegrityError("INSERT INTO ledger_entry", None, exc) from exc
        except (sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError) as exc:
            raise DataError("INSERT INTO ledger_entry", None, exc) from exc
        except sqlite3.Error as exc:
            self._disconnect()
            raise OperationalError("INSERT INTO ledger_entry", None, exc) from exc

    def _write_all(self, connection: sqlite3.Connection, rows: Sequence[dict[str, Any]]) -> list[bool]:
        values = [[encode(row[name]) for name, encode in zip(_NAMES, self._encoders, strict=True)] for row in rows]
        connection.execute("BEGIN IMMEDIATE")
        try:
            inserted = [connection.execute(self._insert, each).rowcount == 1 for each in values]
            buckets = {row["bucket"] for row, fresh in zip(rows, inserted, strict=True) if fresh}
            connection.executemany("INSERT INTO rollup_mark (bucket) VALUES (?)", [(b,) for b in sorted(buckets)])
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        return inserted

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
            )
            for pragma in SQLITE_PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)


class PostgresSink:
    """An asyncpg connection of its own and one statement: rows by unnest, marks in the same statement, one trip."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._connection: Any = None
        self._lock = asyncio.Lock()  # a connection runs one statement at a time
        self._encoders = [_postgres_encoder(column) for column in _COLUMNS]
        places = ", ".join(f"${i + 1}::{_array_type(column)}" for i, column in enumerate(_COLUMNS))
        picked = ", ".join(f"r.{c.name}::json" if isinstance(c.type, sa.JSON) else f"r.{c.name}" for c in _COLUMNS)
        key = ", ".join(_KEY)
        self._insert = f"""
            WITH fresh AS (
                INSERT INTO ledger_entry ({", ".join(_NAMES)})
                SELECT {picked} FROM unnest({places}) AS r({", ".join(_NAMES)})
                ON CONFLICT ({key}) DO NOTHING RETURNING {key}, bucket
            ), marks AS (
                INSERT INTO rollup_mark (bucket) SELECT DISTINCT bucket FROM fresh
            )
            SELECT {key} FROM fresh"""  # noqa: S608

    async def insert(self, rows: Sequence[dict[str, Any]]) -> list[bool]:
        import asyncpg

        arrays = [[encode(row[name]) for row in rows] for name, encode in zip(_NAMES, self._encoders, strict=True)]
        async with self._lock:
            try:
                connection = await self._connected()
                fetched = await connection.fetch(self._insert, *arrays)
            except asyncpg.IntegrityConstraintViolationError as exc:
                raise IntegrityError("INSERT INTO ledger_entry", None, exc) from exc
            except (asyncpg.DataError, asyncpg.exceptions.UntranslatableCharacterError) as exc:
                raise DataError("INSERT INTO ledger_entry", None, exc) from exc
            except BaseException as exc:
                await self._drop()  # its state is unknown: after a timeout a statement may still be under way
                if isinstance(exc, asyncpg.PostgresError | asyncpg.InterfaceError):
                    raise OperationalError("INSERT INTO ledger_entry", None, exc) from exc
                raise
        fresh = {tuple(record) for record in fetched}
        inserted = []
        for row in rows:
            key = tuple(str(row[name]) if name == "kind" else row[name] for name in _KEY)
            inserted.append(key in fresh)
            fresh.discard(key)  # a second one of the same key in this group is a repetition
        return inserted

    async def _connected(self) -> Any:
        import asyncpg

        if self._connection is None or self._connection.is_closed():
            _, options = self._engine.dialect.create_connect_args(self._engine.url)
            options = {k: v for k, v in options.items() if not k.startswith("prepared_statement")}
            self._connection = await asyncpg.connect(
                **options, timeout=5, server_settings={"timezone": "UTC", "application_name": "weir-ledger"}
            )
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=2)
            except (OSError, TimeoutError):
                connection.terminate()


Encoder = Callable[[Any], Any]


def _sqlite_encoder(column: sa.Column[Any]) -> Encoder:
    """As SQLAlchemy stores them: JSON as text, moments as naive UTC text with microseconds, enums by value."""
    if isinstance(column.type, sa.JSON):
        return json.dumps
    if isinstance(column.type, UtcDateTime):
        return lambda v: None if v is None else _utc(v).strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(column.type, sa.Enum):
        return str
    if isinstance(column.type, sa.Boolean):
        return int
    return lambda v: v


def _postgres_encoder(column: sa.Column[Any]) -> Encoder:
    if isinstance(column.type, sa.JSON):
        return json.dumps
    if isinstance(column.type, UtcDateTime):
        return lambda v: None if v is None else _utc(v)
    if isinstance(column.type, sa.Enum):
        return str
    return lambda v: v


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"naive datetime {moment!r}: every moment in the books has a time zone")
    return moment.astimezone(UTC)


def _array_type(column: sa.Column[Any]) -> str:
    if isinstance(column.type, UtcDateTime):
        return "timestamptz[]"
    if isinstance(column.type, sa.Boolean):
        return "bool[]"
    if isinstance(column.type, sa.Integer):
        return "bigint[]"
    return "text[]"
