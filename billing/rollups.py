"""Roll-ups by 15 minutes, UTC: derived from the ledger, bucket by bucket, whenever a bucket is marked.

A mark is a row of its own written in the transaction of the ledger rows, so writers never wait for one another; the
roller deletes the marks it has seen in the transaction that rewrites their buckets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.db import Database
from billing.tables import EntryKind, LedgerEntry, RollupMark, UsageRollup

MAX_MARKS = 20_000  # a pass; the rest waits for the next
_ADVISORY_LOCK = 0x7765_6973
DIMENSIONS = (
    "bucket",
    "tenant_id",
    "project_id",
    "key_id",
    "model",
    "endpoint",
    "upstream",
    "service_tier",
    "batch",
    "cache_outcome",
    "status",
)
SUMS = (
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "batch_input_tokens",
    "batch_output_tokens",
    "input_amount_nano",
    "cached_input_amount_nano",
    "output_amount_nano",
    "batch_input_amount_nano",
    "batch_output_amount_nano",
    "adjustment_nano",
    "amount_nano_usd",
    "engine_us",
    "cost_nano_usd",
    "saved_input_tokens",
    "saved_output_tokens",
    "saved_nano_usd",
    "latency_us",
)


def ledger_as_rollup() -> sa.Select[Any]:
    """The ledger grouped as the roll-up is, without a WHERE: the caller adds one. Columns in UsageRollup's order."""
    zero: sa.ColumnElement[int] = sa.literal_column("0")  # a bound 0 would differ between SELECT and GROUP BY
    batch = sa.or_(LedgerEntry.batch_input_tokens != zero, LedgerEntry.batch_output_tokens != zero)
    dimensions: list[sa.Label[Any]] = []
    for name in DIMENSIONS:
        if name == "batch":
            dimensions.append(sa.case((batch, sa.true()), else_=sa.false()).label(name))
        elif name == "status":
            dimensions.append(sa.cast(LedgerEntry.status, sa.String(32)).label(name))
        else:
            dimensions.append(getattr(LedgerEntry, name).label(name))
    is_request = LedgerEntry.kind.in_([EntryKind.USAGE, EntryKind.CACHE_HIT])
    requests = sa.func.coalesce(sa.func.sum(sa.case((is_request, 1), else_=0)), 0)
    sums = [_whole(sa.func.coalesce(sa.func.sum(getattr(LedgerEntry, name)), 0)).label(name) for name in SUMS]
    return sa.select(*dimensions, _whole(requests).label("requests"), *sums).group_by(*dimensions)


def _whole(expression: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.cast(expression, sa.BigInteger)  # PostgreSQL sums BIGINTs to NUMERIC


async def refresh(db: Database) -> int:
    """Rewrite every marked bucket; returns how many. Safe to run from several gateways at once."""
    async with db.read() as session:
        if await session.scalar(sa.select(RollupMark.id).limit(1)) is None:
            return 0
    async with db.begin() as session:
        await _lock(session, db.dialect)
        marks = (await session.execute(sa.select(RollupMark.id, RollupMark.bucket).limit(MAX_MARKS))).all()
        buckets = sorted({mark.bucket for mark in marks})
        await rewrite(session, buckets)
        for first in range(0, len(marks), 500):
            ids = [mark.id for mark in marks[first : first + 500]]
            await session.execute(sa.delete(RollupMark).where(RollupMark.id.in_(ids)))
    return len(buckets)


async def rebuild(db: Database) -> int:
    """Delete every roll-up and derive them all again, to the same bytes; returns how many buckets."""
    async with db.begin() as session:
        await _lock(session, db.dialect)
        await session.execute(sa.delete(UsageRollup))
        await session.execute(sa.delete(RollupMark))
        buckets = list(await session.scalars(sa.select(LedgerEntry.bucket).distinct().order_by(LedgerEntry.bucket)))
        await rewrite(session, buckets)
    return len(buckets)


async def rewrite(session: AsyncSession, buckets: Iterable[int]) -> None:
    """Replace the roll-ups of `buckets` by what the ledger says, in this transaction."""
    columns = [*DIMENSIONS, "requests", *SUMS]
    for bucket in buckets:
        await session.execute(sa.delete(UsageRollup).where(UsageRollup.bucket == bucket))
        query = ledger_as_rollup().where(LedgerEntry.bucket == bucket)
        await session.execute(sa.insert(UsageRollup).from_select(columns, query))


async def _lock(session: AsyncSession, dialect: str) -> None:
    """One roller at a time: SQLite's BEGIN IMMEDIATE sees to it by itself."""
    if dialect == "postgresql":
        await session.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
