"""Runs migrations: on the connection `billing.db.upgrade` passes, or on WEIR_DATABASE_URL for the alembic command.

On PostgreSQL one migrator works at a time (advisory lock), waits a bounded time for a table's lock, so that a
migration never queues every reader behind it, and bounds a statement (pypi/warehouse does the same).
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

import sqlalchemy as sa
from alembic import context

import billing.tables  # noqa: F401  fills Base.metadata
import gateway.tables  # noqa: F401  fills it too
from billing.db import Base, UtcDateTime, migrating

LOCK_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_MS = 300_000
_ADVISORY_LOCK = 0x7765_6972  # "weir"


def render_type(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """Write plain SQLAlchemy types into migrations: they must not change when ours do."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


def run(connection: sa.Connection) -> None:
    """Migrate in the transaction of `connection`, which its owner began: all revisions are committed together or none.

    The revision is read after the lock is taken, hence as the migrator before us left it.
    """
    sqlite = connection.dialect.name == "sqlite"
    if not sqlite:
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        connection.execute(sa.text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
        connection.execute(sa.text(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}"))
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_server_default=True,
        render_item=render_type,
    )
    with context.begin_transaction():
        context.run_migrations()


async def _run_alone() -> None:
    url = os.environ.get("WEIR_DATABASE_URL")
    if not url:
        raise SystemExit("weir: set WEIR_DATABASE_URL, or use `weir migrate`")
    async with migrating(url) as connection:
        await connection.run_sync(run)


_connection: sa.Connection | None = context.config.attributes.get("connection")
if _connection is None:
    asyncio.run(_run_alone())
else:
    run(_connection)
