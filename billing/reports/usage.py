"""Usage and costs by time buckets, as OpenAI's organization API shows them: UTC-aligned, paged by bucket."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.db import plan_for_reports
from billing.entry import AMOUNT_FIELDS, TOKEN_FIELDS
from billing.errors import Invalid
from billing.principal import Actor
from billing.reports.report import ReportQuery, narrow
from billing.reports.usage_rows import COLUMN_OF, conditions, grouped_usage
from billing.rollups import SUMS, ledger_as_rollup
from billing.tables import LedgerEntry

USAGE_SUMS = ("requests", *TOKEN_FIELDS)
COSTS_SUMS = ("requests", *TOKEN_FIELDS, *AMOUNT_FIELDS)
WIDTHS = {"1m": 60, "1h": 3600, "1d": 86_400}
PAGE_DEFAULTS = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}  # buckets a page: default, largest
COSTS_PAGE = (7, 180)
COMPLETION_ENDPOINTS = ("chat", "completions", "responses", "batches")
EMBEDDING_ENDPOINTS = ("embeddings",)
GROUPS = {
    "project_id": "project",
    "api_key_id": "key",
    "model": "model",
    "batch": "batch",
    "service_tier": "service_tier",
}
LINE_ITEMS = {
    "input": ("input_tokens", "input_amount_nano"),
    "cached input": ("cached_input_tokens", "cached_input_amount_nano"),
    "output": ("output_tokens", "output_amount_nano"),
    "batch input": ("batch_input_tokens", "batch_input_amount_nano"),
    "batch output": ("batch_output_tokens", "batch_output_amount_nano"),
}


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """[start, end) in `width` buckets. `filters` take report dimensions (project, key, model, batch, endpoint ...)."""

    start: datetime
    end: datetime | None = None
    width: str = "1d"
    group_by: tuple[str, ...] = ()
    tenant_id: str | None = None
    filters: dict[str, tuple[str, ...]] = {}
    limit: int | None = None
    page: str | None = None


class UsageBucket(msgspec.Struct, frozen=True):
    """Unix seconds and the sums of its groups (rollups.SUMS, `requests`, and the dimensions grouped by)."""

    start_time: int
    end_time: int
    results: list[dict[str, Any]]


class UsagePage(msgspec.Struct, frozen=True):
    """`next_page` goes into the next query's `page`; None at the end."""

    buckets: list[UsageBucket]
    next_page: str | None


async def usage(session: AsyncSession, actor: Actor, query: UsageQuery, *, now: datetime | None = None) -> UsagePage:
    """Token sums by bucket. `group_by`: project_id, api_key_id, model, batch, service_tier (user_id is always null).

    Raises: Invalid for a width, group, limit or page that is not one; Forbidden, NotFound outside the actor's reach.
    """
    if query.width not in WIDTHS:
        raise Invalid(f"bucket_width: {query.width[:20]!r} is none of 1m, 1h, 1d", param="bucket_width")
    names = [name for name in query.group_by if name != "user_id"]
    for name in names:
        if name not in GROUPS:
            raise Invalid(f"group_by: {name[:40]!r} is none of {', '.join((*GROUPS, 'user_id'))}", param="group_by")
    columns = tuple(COLUMN_OF[GROUPS[name]] for name in names)
    first, last, after = _page(query, PAGE_DEFAULTS[query.width], now)
    rows = await _rows(session, actor, query, columns, USAGE_SUMS, first=first, last=last)
    return _bucketed(rows, WIDTHS[query.width], first=first, last=last, after=after)


async def costs(session: AsyncSession, actor: Actor, query: UsageQuery, *, now: datetime | None = None) -> UsagePage:
    """Money by day. `group_by`: project_id, api_key_id, line_item (`model, class`).

    Each result has `amount_nano_usd`, and with line items `line_item` and `quantity` (tokens). Raises: as `usage`.
    """
    for name in query.group_by:
        if name not in ("project_id", "api_key_id", "line_item"):
            raise Invalid(f"group_by: {name[:40]!r} is none of project_id, line_item, api_key_id", param="group_by")
    query = msgspec.structs.replace(query, width="1d")
    by_line = "line_item" in query.group_by
    owners = tuple(COLUMN_OF[GROUPS[name]] for name in query.group_by if name != "line_item")
    columns = (*owners, "model") if by_line else owners
    first, last, after = _page(query, COSTS_PAGE, now)
    rows = await _rows(session, actor, query, columns, COSTS_SUMS, first=first, last=last)
    page = _bucketed(rows, WIDTHS["1d"], first=first, last=last, after=after)
    if not by_line:
        return page
    buckets = [
        UsageBucket(b.start_time, b.end_time, [line for row in b.results for line in _lines(row, owners)])
        for b in page.buckets
    ]
    return UsagePage(buckets, page.next_page)


def _lines(row: dict[str, Any], owners: Sequence[str]) -> list[dict[str, Any]]:
    who = {name: row[name] for name in owners}
    lines = [
        {**who, "line_item": f"{row['model']}, {name}", "quantity": row[tokens], "amount_nano_usd": row[amount]}
        for name, (tokens, amount) in LINE_ITEMS.items()
        if row[tokens] or row[amount]
    ]
    if row["adjustment_nano"]:
        lines.append({**who, "line_item": "adjustment", "quantity": None, "amount_nano_usd": row["adjustment_nano"]})
    return lines


def _page(query: UsageQuery, sizes: tuple[int, int], now: datetime | None) -> tuple[int, int, int | None]:
    """(first bucket's start, end of the page, where the next page starts or None), in Unix seconds."""
    width = WIDTHS[query.width]
    default, largest = sizes
    limit = default if query.limit is None else query.limit
    if not 1 <= limit <= largest:
        raise Invalid(f"limit: {limit} is not between 1 and {largest}", param="limit")
    first = int(query.start.timestamp())
    if query.page is not None:
        if not query.page.isdigit() or len(query.page) > 12:
            raise Invalid("page: not a token that a former page gave", param="page")
        first = int(query.page)
    first -= first % width
    end = int((query.end or now or datetime.now(UTC)).timestamp())
    if query.end is not None and query.end <= query.start:
        raise Invalid("end_time: must be after start_time", param="end_time")
    end += -end % width
    last = min(end, first + limit * width)
    return first, max(last, first), last if last < end else None


async def _rows(
    session: AsyncSession,
    actor: Actor,
    query: UsageQuery,
    columns: tuple[str, ...],
    sums: tuple[str, ...],
    *,
    first: int,
    last: int,
) -> list[dict[str, Any]]:
    report = narrow(
        actor,
        ReportQuery(
            start=datetime.fromtimestamp(first, UTC),
            end=datetime.fromtimestamp(last, UTC),
            tenant_id=query.tenant_id,
            filters=query.filters,
        ),
    )
    if first >= last:
        return []
    await plan_for_reports(session)
    if query.width == "1m":
        return await _by_minute(session, report, columns)
    width: sa.ColumnElement[int] = sa.literal_column(str(WIDTHS[query.width]))
    return await grouped_usage(
        session,
        report,
        columns,
        cut=lambda bucket: bucket - bucket % width,
        starts=range(first, last, WIDTHS["1d"]) if query.width == "1d" else None,
        sums=sums,
    )


async def _by_minute(session: AsyncSession, query: ReportQuery, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """From the rows themselves: roll-ups are by 15 minutes. A page is a day at most."""
    assert query.start is not None
    assert query.end is not None
    minute = _minute(session)
    base = ledger_as_rollup().add_columns(minute.label("minute")).group_by(minute)
    # A quarter around the page by the indexed bucket, the exact edges by the moment.
    wide = msgspec.structs.replace(query, end=query.end + timedelta(minutes=15))
    for condition in conditions(wide, LedgerEntry):
        base = base.where(condition)
    base = base.where(LedgerEntry.accepted_at >= query.start, LedgerEntry.accepted_at < query.end)
    inner = base.subquery()
    groups = [inner.c.minute.label("period"), *(inner.c[name] for name in columns)]
    sums = [sa.cast(sa.func.sum(inner.c[name]), sa.BigInteger).label(name) for name in ("requests", *SUMS)]
    keys = [inner.c.minute, *(inner.c[name] for name in columns)]
    rows = await session.execute(sa.select(*groups, *sums).group_by(*keys).order_by(*keys))
    return [dict(row) for row in rows.mappings()]


def _minute(session: AsyncSession) -> sa.ColumnElement[int]:
    """The Unix second at which accepted_at's minute starts."""
    if session.get_bind().dialect.name == "sqlite":
        return sa.literal_column("CAST(strftime('%s', ledger_entry.accepted_at) AS INTEGER) / 60 * 60", sa.BigInteger())
    return sa.literal_column(
        "CAST(floor(extract(epoch FROM ledger_entry.accepted_at) / 60) * 60 AS BIGINT)", sa.BigInteger()
    )


def _bucketed(rows: list[dict[str, Any]], width: int, *, first: int, last: int, after: int | None) -> UsagePage:
    groups: dict[int, list[dict[str, Any]]] = {start: [] for start in range(first, last, width)}
    for row in rows:
        groups[row.pop("period")].append(row)
    buckets = [UsageBucket(start, start + width, results) for start, results in groups.items()]
    return UsagePage(buckets, str(after) if after is not None else None)
