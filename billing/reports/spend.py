"""Who spent what: tokens, money, cost and requests by tenant, project, key, model, day and more."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.ext.asyncio import AsyncSession

from billing.reports.report import Column, ColumnKind, Report, ReportQuery, ReportTable
from billing.reports.usage_rows import COLUMN_OF, TIMES, grouped_usage
from billing.rollups import SUMS
from billing.windows import window_of

_MEASURES = (
    Column("requests", "requests", ColumnKind.COUNT),
    Column("input_tokens", "input", ColumnKind.COUNT),
    Column("cached_input_tokens", "cached input", ColumnKind.COUNT),
    Column("output_tokens", "output", ColumnKind.COUNT),
    Column("batch_input_tokens", "batch input", ColumnKind.COUNT),
    Column("batch_output_tokens", "batch output", ColumnKind.COUNT),
    Column("amount_nano_usd", "spent", ColumnKind.MONEY),
    Column("cost_nano_usd", "cost", ColumnKind.MONEY),
    Column("saved_nano_usd", "saved by cache", ColumnKind.MONEY),
)


async def build(session: AsyncSession, query: ReportQuery) -> ReportTable:
    """Rows by `query.by`; days, weeks and months are cut in `query.time_zone`. `total` sums all rows."""
    time_names = [name for name in query.by if name in TIMES]
    columns = tuple(COLUMN_OF[name] for name in query.by if name not in TIMES)
    usage = await grouped_usage(session, query, columns, with_bucket=bool(time_names))
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in usage:
        key = tuple(
            local_period(name, row["bucket"], query.time_zone) if name in TIMES else row[COLUMN_OF[name]]
            for name in query.by
        )
        into = groups.setdefault(key, dict(zip(query.by, key, strict=True)))
        add_up(into, row)
    total: dict[str, Any] = {}
    for into in groups.values():
        add_up(total, into)
    rows = [groups[key] for key in sorted(groups, key=lambda k: tuple(map(str, k)))][: query.limit]
    heads = tuple(Column(name, name.replace("_", " "), ColumnKind.TEXT) for name in query.by)
    return ReportTable(name="spend", columns=(*heads, *_MEASURES), rows=rows, total=total)


def add_up(into: dict[str, Any], row: dict[str, Any]) -> None:
    """Add a row's requests and sums to a group's."""
    for name in ("requests", *SUMS):
        into[name] = into.get(name, 0) + (row[name] or 0)


def local_period(name: str, bucket: int, time_zone: str) -> str:
    """The local day (2026-12-01), week (its Monday), month (2026-12) or hour a bucket falls into."""
    moment = datetime.fromtimestamp(bucket, UTC)
    if name == "bucket":
        return moment.isoformat()
    if name == "hour":
        return moment.astimezone(ZoneInfo(time_zone)).strftime("%Y-%m-%dT%H:00%z")
    label = window_of(name, moment, time_zone).label
    return label[:7] if name == "month" else label


REPORT = Report(
    name="spend",
    title="Who spent what",
    dimensions=(*COLUMN_OF, *TIMES),
    default_by=("tenant", "model"),
    build=build,
)
