"""Who spent what: tokens, money, cost and requests by tenant, project, key, model, day and more."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from billing.reports.report import Column, ColumnKind, Report, ReportQuery, ReportTable
from billing.reports.usage_rows import COLUMN_OF, TIMES, usage_by_names

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


SHOWN = (*(column.key for column in _MEASURES), "engine_us")  # each costs a pass over the rows; engine time: margin's


async def build(session: AsyncSession, query: ReportQuery) -> ReportTable:
    """Rows by `query.by`; days, weeks and months are cut in `query.time_zone`. `total` sums all rows."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key, row in await usage_by_names(session, query, sums=SHOWN):
        into = groups.get(key)
        if into is None:
            groups[key] = dict(zip(query.by, key, strict=True)) | {name: row[name] for name in SHOWN}
        else:
            for name in SHOWN:
                into[name] += row[name]
    total = {name: sum(row[name] for row in groups.values()) for name in SHOWN} if groups else {}
    rows = [groups[key] for key in sorted(groups)][: query.limit]
    heads = tuple(Column(name, name.replace("_", " "), ColumnKind.TEXT) for name in query.by)
    return ReportTable(name="spend", columns=(*heads, *_MEASURES), rows=rows, total=total)


REPORT = Report(
    name="spend",
    title="Who spent what",
    dimensions=(*COLUMN_OF, *TIMES),
    default_by=("tenant", "model"),
    build=build,
)
