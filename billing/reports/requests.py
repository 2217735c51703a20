"""A page of requests: ledger rows, newest first, paged by id (keyset), never counted."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.errors import Invalid
from billing.reports.report import Column, ColumnKind, Report, ReportQuery, ReportTable
from billing.reports.usage_rows import conditions
from billing.tables import LedgerEntry

MAX_PAGE = 200
_MORE = {
    "request": LedgerEntry.request_id,
    "conversation": LedgerEntry.conversation_id,
    "end_user": LedgerEntry.end_user,
    "error": LedgerEntry.error_code,
    "kind": LedgerEntry.kind,
}
COLUMNS = (
    Column("id", "row", ColumnKind.COUNT),
    Column("accepted_at", "time", ColumnKind.TIME),
    Column("request_id", "request", ColumnKind.TEXT),
    Column("attempt", "attempt", ColumnKind.COUNT),
    Column("kind", "kind", ColumnKind.TEXT),
    Column("seq", "seq", ColumnKind.COUNT),
    Column("status", "status", ColumnKind.TEXT),
    Column("tenant_id", "tenant", ColumnKind.TEXT),
    Column("project_id", "project", ColumnKind.TEXT),
    Column("key_id", "key", ColumnKind.TEXT),
    Column("model", "model", ColumnKind.TEXT),
    Column("endpoint", "endpoint", ColumnKind.TEXT),
    Column("upstream", "upstream", ColumnKind.TEXT),
    Column("conversation_id", "conversation", ColumnKind.TEXT),
    Column("end_user", "end user", ColumnKind.TEXT),
    Column("input_tokens", "input", ColumnKind.COUNT),
    Column("cached_input_tokens", "cached input", ColumnKind.COUNT),
    Column("output_tokens", "output", ColumnKind.COUNT),
    Column("batch_input_tokens", "batch input", ColumnKind.COUNT),
    Column("batch_output_tokens", "batch output", ColumnKind.COUNT),
    Column("amount_nano_usd", "charged", ColumnKind.MONEY),
    Column("cost_nano_usd", "cost", ColumnKind.MONEY),
    Column("cache_outcome", "cache", ColumnKind.TEXT),
    Column("saved_nano_usd", "saved", ColumnKind.MONEY),
    Column("ttft_us", "TTFT", ColumnKind.MICROSECONDS),
    Column("latency_us", "latency", ColumnKind.MICROSECONDS),
    Column("finish_reason", "finish", ColumnKind.TEXT),
    Column("error_code", "error", ColumnKind.TEXT),
)


async def build(session: AsyncSession, query: ReportQuery) -> ReportTable:
    """`after` is the last page's `next_after`; `limit` at most 200."""
    usual = {name: values for name, values in query.filters.items() if name not in _MORE}
    statement = (
        sa.select(*(getattr(LedgerEntry, column.key) for column in COLUMNS))
        .order_by(LedgerEntry.id.desc())
        .limit(min(query.limit, MAX_PAGE) + 1)
    )
    for condition in conditions(ReportQuery(**{**_plain(query), "filters": usual}), LedgerEntry):
        statement = statement.where(condition)
    if query.start is not None:
        statement = statement.where(LedgerEntry.accepted_at >= query.start)
    if query.end is not None:
        statement = statement.where(LedgerEntry.accepted_at < query.end)
    for name, values in query.filters.items():
        if name in _MORE:
            statement = statement.where(_MORE[name].in_(values))
    if query.after is not None:
        if not query.after.isdigit() or len(query.after) > 18:
            raise Invalid("after: not a token that a former page gave", param="after")
        statement = statement.where(LedgerEntry.id < int(query.after))
    found = [dict(row) for row in (await session.execute(statement)).mappings()]
    rows = found[: min(query.limit, MAX_PAGE)]
    more = len(found) > len(rows)
    return ReportTable(name="requests", columns=COLUMNS, rows=rows, next_after=str(rows[-1]["id"]) if more else None)


def _plain(query: ReportQuery) -> dict[str, Any]:
    return {name: getattr(query, name) for name in ("start", "end", "tenant_id", "time_zone")}


REPORT = Report(
    name="requests",
    title="Requests, newest first",
    dimensions=("tenant", "project", "key", "model", "endpoint", "upstream", "service_tier", "cache", "status", *_MORE),
    default_by=(),
    build=build,
)
