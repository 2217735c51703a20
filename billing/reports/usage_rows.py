"""Grouped usage for the reports: by dimensions and by calendar periods, summed in SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.clock import bucket_of
from billing.reports.report import ReportQuery
from billing.rollups import SUMS
from billing.tables import LedgerEntry, UsageByDay, UsageByModel, UsageRollup
from billing.usage_source import Table, usage_source
from billing.windows import window_of

COLUMN_OF = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "model": "model",
    "endpoint": "endpoint",
    "upstream": "upstream",
    "service_tier": "service_tier",
    "batch": "batch",
    "cache": "cache_outcome",
    "status": "status",
}
TIMES = ("day", "week", "month", "hour", "bucket")
MAX_PERIODS_SQLITE = 400  # as branches of a CASE
ALL_SUMS = ("requests", *SUMS)
Cut = Callable[[sa.ColumnElement[int]], sa.ColumnElement[int]]


async def grouped_usage(
    session: AsyncSession,
    query: ReportQuery,
    columns: Sequence[str],
    *,
    cut: Cut | None = None,
    starts: Sequence[int] | None = None,
    sums: Sequence[str] = ALL_SUMS,
) -> list[dict[str, Any]]:
    """`sums` by dimension `columns`, and by `cut(bucket)` as `period`; ordered by the same.

    `starts`: the only moments, in Unix seconds, at which the cut's periods begin; None where it tells buckets apart.
    """
    usage = usage_source(
        columns,
        [COLUMN_OF[name] for name in query.filters] + (["tenant_id"] if query.tenant_id is not None else []),
        lambda table: conditions(query, table, windowed=False),
        start=bucket_of(query.start) if query.start is not None else None,
        end=bucket_of(query.end) if query.end is not None else None,
        cuts=() if cut is None else starts,
        sums=sums,
        dialect=session.get_bind().dialect.name,
    )
    groups: list[sa.ColumnElement[Any]] = [usage.c[name] for name in columns]
    if cut is not None:
        period = sa.select(cut(usage.c.bucket).label("period"), *usage.c).subquery()
        groups, usage = [period.c.period, *(period.c[name] for name in columns)], period
    totals = [sa.cast(sa.func.sum(usage.c[name]), sa.BigInteger).label(name) for name in sums]
    statement = sa.select(*groups, *totals)
    if groups:
        statement = statement.group_by(*groups).order_by(*groups)
    found = await session.execute(statement)
    names = tuple(found.keys())
    first_sum = len(names) - len(sums)
    return [dict(zip(names, row, strict=True)) for row in found.all() if row[first_sum] is not None]


async def usage_by_names(
    session: AsyncSession, query: ReportQuery, more: Sequence[str] = (), *, sums: Sequence[str] = ALL_SUMS
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """(values of `query.by`, sums) with periods as their labels; `more` columns are grouped by too.

    Several rows may carry the same values: when `more` is given, or a period is finer than what SQL cut.
    """
    times = [name for name in query.by if name in TIMES]
    columns = tuple(dict.fromkeys([*(COLUMN_OF[name] for name in query.by if name not in TIMES), *more]))
    cut, starts = await _cut(session, query, times)
    rows = []
    for row in await grouped_usage(session, query, columns, cut=cut, starts=starts, sums=sums):
        start = row.pop("period", 0)
        bucket = starts[start] if starts is not None else start
        values = tuple(
            local_period(name, bucket, query.time_zone) if name in TIMES else row[COLUMN_OF[name]] for name in query.by
        )
        rows.append((values, row))
    return rows


async def _cut(session: AsyncSession, query: ReportQuery, times: list[str]) -> tuple[Cut | None, list[int] | None]:
    """How SQL cuts time, and the periods' starts when it gives their number; buckets whole where it cannot."""
    if not times:
        return None, None
    if len(times) == 1 and times[0] in ("day", "week", "month"):
        starts = await _period_starts(session, query, times[0])
        if session.get_bind().dialect.name == "postgresql":
            edges: sa.ColumnElement[Any] = sa.literal_column(f"ARRAY[{', '.join(map(str, starts))}]::bigint[]")
            return lambda bucket: sa.func.width_bucket(bucket, edges, type_=sa.Integer()) - 1, starts
        if len(starts) <= MAX_PERIODS_SQLITE:
            return lambda bucket: _case(bucket, starts), starts
    return lambda bucket: bucket, None


def _case(bucket: sa.ColumnElement[int], starts: list[int]) -> sa.ColumnElement[int]:
    whens: list[tuple[sa.ColumnElement[bool], sa.ColumnElement[int]]] = [
        (bucket < sa.literal_column(str(start)), sa.literal_column(str(i))) for i, start in enumerate(starts[1:])
    ]
    last: sa.ColumnElement[int] = sa.literal_column(str(len(starts) - 1))
    return sa.case(*whens, else_=last) if whens else last


async def _period_starts(session: AsyncSession, query: ReportQuery, name: str) -> list[int]:
    """Where each local period begins, in Unix seconds, from the first usage to the last within the query's range."""
    bounds = sa.select(sa.func.min(LedgerEntry.bucket), sa.func.max(LedgerEntry.bucket))
    oldest, newest = (await session.execute(bounds)).one()
    moment = max(bucket_of(query.start) if query.start else 0, oldest or 0)
    last = min(bucket_of(query.end) if query.end else 2**40, (newest or 0) + 1)
    starts = []
    while True:
        window = window_of(name, datetime.fromtimestamp(moment, UTC), query.time_zone)
        starts.append(int(window.start.timestamp()))
        moment = int(window.end.timestamp())
        if moment >= last:
            return starts


@lru_cache(maxsize=4096)  # asked once a row, of few periods
def local_period(name: str, bucket: int, time_zone: str) -> str:
    """The local day (2026-12-01), week (its Monday), month (2026-12) or hour a bucket falls into."""
    moment = datetime.fromtimestamp(bucket, UTC)
    if name == "bucket":
        return moment.isoformat()
    if name == "hour":
        return moment.astimezone(ZoneInfo(time_zone)).strftime("%Y-%m-%dT%H:00%z")
    label = window_of(name, moment, time_zone).label
    return label[:7] if name == "month" else label


def conditions(query: ReportQuery, table: Table, *, windowed: bool = True) -> list[sa.ColumnElement[bool]]:
    """The WHERE of a query's window (by bucket, where `windowed`), tenant and filters, for any of the tables."""
    found: list[sa.ColumnElement[bool]] = []
    if windowed and query.start is not None:
        found.append(table.bucket >= bucket_of(query.start))
    if windowed and query.end is not None:
        found.append(table.bucket < bucket_of(query.end))
    if query.tenant_id is not None:
        found.append(table.tenant_id == query.tenant_id)
    for name, values in query.filters.items():
        if name == "batch":
            found.append(_batch(table, values))
        else:
            found.append(getattr(table, COLUMN_OF[name]).in_(values))
    return found


def _batch(table: Table, values: tuple[str, ...]) -> sa.ColumnElement[bool]:
    assert table is not UsageByModel
    is_batch: sa.ColumnElement[bool]
    if table is LedgerEntry:
        is_batch = sa.or_(LedgerEntry.batch_input_tokens != 0, LedgerEntry.batch_output_tokens != 0)
    else:
        is_batch = (UsageRollup if table is UsageRollup else UsageByDay).batch.is_(True)
    wanted = {value.lower() in ("true", "1") for value in values}
    if len(wanted) == 2:
        return sa.true()
    return is_batch if True in wanted else sa.not_(is_batch)
