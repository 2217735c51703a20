"""The one source of grouped usage: roll-ups of clean buckets and the rows of marked ones, so it is always exact."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.clock import bucket_of
from billing.reports.report import ReportQuery
from billing.rollups import DIMENSIONS, SUMS, ledger_as_rollup
from billing.tables import LedgerEntry, RollupMark, UsageRollup

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


async def grouped_usage(
    session: AsyncSession, query: ReportQuery, columns: tuple[str, ...], *, with_bucket: bool
) -> list[dict[str, Any]]:
    """Sums (SUMS and `requests`) by dimension `columns`, and by bucket where asked; ordered by the same."""
    usage = _usage(query)
    keys = (*(("bucket",) if with_bucket else ()), *columns)
    groups = [usage.c[name] for name in keys]
    sums = [sa.cast(sa.func.sum(usage.c[name]), sa.BigInteger).label(name) for name in ("requests", *SUMS)]
    statement = sa.select(*groups, *sums)
    if groups:
        statement = statement.group_by(*groups).order_by(*groups)
    rows = (await session.execute(statement)).mappings().all()
    return [dict(row) for row in rows if row["requests"] is not None]


def _usage(query: ReportQuery) -> sa.Subquery:
    """Filtered UNION ALL of both halves, in one statement: a row is seen once, rolled up or not."""
    marked = sa.select(RollupMark.bucket)
    names = (*DIMENSIONS, "requests", *SUMS)
    rolled = sa.select(*(getattr(UsageRollup, name) for name in names)).where(UsageRollup.bucket.not_in(marked))
    fresh = ledger_as_rollup().where(LedgerEntry.bucket.in_(marked))
    for condition in conditions(query, UsageRollup):
        rolled = rolled.where(condition)
    for condition in conditions(query, LedgerEntry):
        fresh = fresh.where(condition)
    return sa.union_all(rolled, fresh).subquery("usage")


def conditions(query: ReportQuery, table: type[UsageRollup] | type[LedgerEntry]) -> list[sa.ColumnElement[bool]]:
    """The WHERE of a query's window (by bucket), tenant and filters, for either table."""
    found: list[sa.ColumnElement[bool]] = []
    if query.start is not None:
        found.append(table.bucket >= bucket_of(query.start))
    if query.end is not None:
        found.append(table.bucket < bucket_of(query.end))
    if query.tenant_id is not None:
        found.append(table.tenant_id == query.tenant_id)
    for name, values in query.filters.items():
        if name == "batch":
            found.append(_batch(table, values))
        else:
            found.append(getattr(table, COLUMN_OF[name]).in_(values))
    return found


def _batch(table: type[UsageRollup] | type[LedgerEntry], values: tuple[str, ...]) -> sa.ColumnElement[bool]:
    if table is UsageRollup:
        is_batch: sa.ColumnElement[bool] = UsageRollup.batch.is_(True)
    else:
        is_batch = sa.or_(LedgerEntry.batch_input_tokens != 0, LedgerEntry.batch_output_tokens != 0)
    wanted = {value.lower() in ("true", "1") for value in values}
    if len(wanted) == 2:
        return sa.true()
    return is_batch if True in wanted else sa.not_(is_batch)
