"""What was charged beside what the GPU time cost: by upstream, model, tenant, day."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from billing.entry import TOKEN_FIELDS
from billing.money import half_even
from billing.reports import spend
from billing.reports.report import Column, ColumnKind, Report, ReportQuery, ReportTable
from billing.reports.usage_rows import COLUMN_OF, TIMES

_MEASURES = (
    Column("requests", "requests", ColumnKind.COUNT),
    Column("tokens", "tokens", ColumnKind.COUNT),
    Column("engine_us", "engine time", ColumnKind.MICROSECONDS),
    Column("amount_nano_usd", "charged", ColumnKind.MONEY),
    Column("cost_nano_usd", "cost", ColumnKind.MONEY),
    Column("margin_nano_usd", "margin", ColumnKind.MONEY),
    Column("cost_per_million_nano_usd", "cost per 1M tokens", ColumnKind.MONEY),
)


async def build(session: AsyncSession, query: ReportQuery) -> ReportTable:
    """As the spend report, with margin = charged - cost, and what a million tokens really cost."""
    table = await spend.build(session, query)
    rows = table.rows if table.total is None else [*table.rows, table.total]
    for row in rows:
        tokens = sum(row.get(name, 0) for name in TOKEN_FIELDS)
        row["tokens"] = tokens
        row["margin_nano_usd"] = row.get("amount_nano_usd", 0) - row.get("cost_nano_usd", 0)
        row["cost_per_million_nano_usd"] = half_even(row.get("cost_nano_usd", 0) * 1_000_000, tokens) if tokens else 0
    heads = tuple(Column(name, name.replace("_", " "), ColumnKind.TEXT) for name in query.by)
    return ReportTable(name="margin", columns=(*heads, *_MEASURES), rows=table.rows, total=table.total)


REPORT = Report(
    name="margin",
    title="Charged beside cost",
    dimensions=(*COLUMN_OF, *TIMES),
    default_by=("upstream", "model"),
    build=build,
    operators_only=True,
)
