"""Roll-ups by 15 minutes, UTC: derived from the ledger, bucket by bucket, whenever a bucket is marked.

From the 15 minutes three more are derived in the same transaction: by tenant and model alone, the same by spans of
three hours, and by whole UTC day with every dimension once it has ended. A mark is a row of its own written in the
transaction of the ledger rows, so writers never wait for one another; the roller deletes the marks it has seen in the
transaction that rewrites their buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.clock import BUCKET_S, Clock, utc_now
from billing.db import Database
from billing.tables import (
    EntryKind,
    LedgerEntry,
    RollupDay,
    RollupMark,
    UsageByDay,
    UsageByModel,
    UsageBySpan,
    UsageRollup,
)

MAX_MARKS = 20_000  # a pass; the rest waits for the next
MAX_DAYS = 3  # summed up in one pass
BUCKETS_A_STATEMENT = 96
DAY_S = 86_400
SPAN_S = 3 * 3600  # with shorter spans more are read, with longer ones more of what a day's edges cut
_ADVISORY_LOCK = 0x7765_6973
BY_MODEL = ("bucket", "tenant_id", "model")
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


def ledger_as_rollup(names: Sequence[str] = DIMENSIONS, sums: Sequence[str] = SUMS) -> sa.Select[Any]:
    """The ledger grouped as the roll-up is, without a WHERE: the caller adds one. Columns in UsageRollup's order.

    `names` and `sums` are what the caller looks at, where that is not everything; `requests` is always there.
    """
    zero: sa.ColumnElement[int] = sa.literal_column("0")  # a bound 0 would differ between SELECT and GROUP BY
    batch = sa.or_(LedgerEntry.batch_input_tokens != zero, LedgerEntry.batch_output_tokens != zero)
    dimensions: list[sa.Label[Any]] = []
    for name in names:
        if name == "batch":
            dimensions.append(sa.case((batch, sa.true()), else_=sa.false()).label(name))
        elif name == "status":
            dimensions.append(sa.cast(LedgerEntry.status, sa.String(32)).label(name))
        else:
            dimensions.append(getattr(LedgerEntry, name).label(name))
    is_request = LedgerEntry.kind.in_([EntryKind.USAGE, EntryKind.CACHE_HIT])
    requests = sa.func.coalesce(sa.func.sum(sa.case((is_request, 1), else_=0)), 0)
    totals = [_whole(sa.func.coalesce(sa.func.sum(getattr(LedgerEntry, name)), 0)).label(name) for name in sums]
    return sa.select(*dimensions, _whole(requests).label("requests"), *totals).group_by(*dimensions)


def _whole(expression: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.cast(expression, sa.BigInteger)  # PostgreSQL sums BIGINTs to NUMERIC


async def refresh(db: Database, *, clock: Clock = utc_now) -> int:
    """Rewrite every marked bucket and sum up days that have ended; returns how many buckets.

    Safe to run from several gateways at once.
    """
    async with db.read() as session:
        marked = await session.scalar(sa.select(RollupMark.id).limit(1)) is not None
        open_days = await _days_to_sum_up(session, clock)
    if not marked and not open_days:
        return 0
    async with db.begin() as session:
        await _lock(session, db.dialect)
        marks = (await session.execute(sa.select(RollupMark.id, RollupMark.bucket).limit(MAX_MARKS))).all()
        buckets = sorted({mark.bucket for mark in marks})
        await rewrite(session, buckets)
        await _sum_up_days(session, (await _days_to_sum_up(session, clock))[:MAX_DAYS])
        for chunk in _chunks([mark.id for mark in marks], 500):
            await session.execute(sa.delete(RollupMark).where(RollupMark.id.in_(chunk)))
        if open_days and db.dialect == "sqlite":
            # Once a day, 10 ms: not knowing how much a tenant has, SQLite read all of it for its rows of one bucket.
            await session.execute(sa.text("ANALYZE"))
    return len(buckets)


async def rebuild(db: Database, *, clock: Clock = utc_now) -> int:
    """Delete every roll-up and derive them all again, to the same bytes; returns how many buckets."""
    async with db.begin() as session:
        await _lock(session, db.dialect)
        for table in (UsageRollup, UsageByModel, UsageBySpan, UsageByDay, RollupDay, RollupMark):
            await session.execute(sa.delete(table))
        buckets = list(await session.scalars(sa.select(LedgerEntry.bucket).distinct().order_by(LedgerEntry.bucket)))
        await rewrite(session, buckets)
        await _sum_up_days(session, await _days_to_sum_up(session, clock))
    return len(buckets)


async def rewrite(session: AsyncSession, buckets: Sequence[int]) -> None:
    """Replace the roll-ups of `buckets`, their spans and the summed-up days they lie in by what the ledger says."""
    for chunk in _chunks(buckets, BUCKETS_A_STATEMENT):
        await session.execute(sa.delete(UsageRollup).where(UsageRollup.bucket.in_(chunk)))
        derived = ledger_as_rollup().where(LedgerEntry.bucket.in_(chunk))
        await session.execute(sa.insert(UsageRollup).from_select([*DIMENSIONS, "requests", *SUMS], derived))
        await session.execute(sa.delete(UsageByModel).where(UsageByModel.bucket.in_(chunk)))
        narrowed = rollup_by_model().where(UsageRollup.bucket.in_(chunk))
        await session.execute(sa.insert(UsageByModel).from_select([*BY_MODEL, "requests", *SUMS], narrowed))
    for chunk in _chunks(sorted({bucket - bucket % SPAN_S for bucket in buckets}), BUCKETS_A_STATEMENT // 12):
        await session.execute(sa.delete(UsageBySpan).where(UsageBySpan.bucket.in_(chunk)))
        parts = [span + offset for span in chunk for offset in range(0, SPAN_S, BUCKET_S)]
        widened = rollup_by_span().where(UsageByModel.bucket.in_(parts))
        await session.execute(sa.insert(UsageBySpan).from_select([*BY_MODEL, "requests", *SUMS], widened))
    days = {bucket - bucket % DAY_S for bucket in buckets}
    for chunk in _chunks(sorted(days), 500):
        await _sum_up_days(
            session, list(await session.scalars(sa.select(RollupDay.day).where(RollupDay.day.in_(chunk))))
        )


def rollup_by_model() -> sa.Select[Any]:
    """The roll-up grouped by bucket, tenant and model, without a WHERE."""
    keys = [getattr(UsageRollup, name) for name in BY_MODEL]
    return sa.select(*keys, *_sums_of(UsageRollup)).group_by(*keys)


def rollup_by_span() -> sa.Select[Any]:
    """The roll-up by tenant and model grouped by span, without a WHERE."""
    return _by_width(UsageByModel, SPAN_S, BY_MODEL)


def rollup_by_day() -> sa.Select[Any]:
    """The roll-up grouped by UTC day and every dimension, without a WHERE."""
    return _by_width(UsageRollup, DAY_S, DIMENSIONS)


def start_of(bucket: Any, width_s: int) -> sa.ColumnElement[int]:
    """The start of the span or day that a bucket's column lies in."""
    width: sa.ColumnElement[int] = sa.literal_column(str(width_s))
    start: sa.ColumnElement[int] = bucket - bucket % width
    return start


def _by_width(table: type[UsageRollup | UsageByModel], width_s: int, names: Sequence[str]) -> sa.Select[Any]:
    start = start_of(table.bucket, width_s)
    keys = [getattr(table, name) for name in names[1:]]
    return sa.select(start.label("bucket"), *keys, *_sums_of(table)).group_by(start, *keys)


def _sums_of(table: type[UsageRollup | UsageByModel]) -> list[sa.Label[Any]]:
    return [_whole(sa.func.sum(getattr(table, name))).label(name) for name in ("requests", *SUMS)]


async def _sum_up_days(session: AsyncSession, days: Sequence[int]) -> None:
    for day in days:
        await session.execute(sa.delete(UsageByDay).where(UsageByDay.bucket == day))
        derived = rollup_by_day().where(UsageRollup.bucket >= day, UsageRollup.bucket < day + DAY_S)
        await session.execute(sa.insert(UsageByDay).from_select([*DIMENSIONS, "requests", *SUMS], derived))
        await session.execute(sa.delete(RollupDay).where(RollupDay.day == day))
        session.add(RollupDay(day=day))
        await session.flush()


async def _days_to_sum_up(session: AsyncSession, clock: Clock) -> list[int]:
    """Days with roll-ups that ended two hours ago or more and are not summed up: late rows are rare from then on."""
    newest = await session.scalar(sa.select(sa.func.max(RollupDay.day)))
    first = await session.scalar(
        sa.select(sa.func.min(UsageRollup.bucket)).where(UsageRollup.bucket >= (newest or 0) + (DAY_S if newest else 0))
    )
    if first is None:
        return []
    end = int(clock().timestamp()) - 2 * 3600
    return list(range(first - first % DAY_S, end - end % DAY_S, DAY_S))


def _chunks(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


async def _lock(session: AsyncSession, dialect: str) -> None:
    """One roller at a time: SQLite's BEGIN IMMEDIATE sees to it by itself."""
    if dialect == "postgresql":
        await session.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
