"""What the caches saved: answers served again (exact, semantic) and prompt tokens found in the prefix cache.

Money saved is the full price of the answers served again less what the tenant's policy charges for them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from billing.reports.report import Column, ColumnKind, Report, ReportQuery, ReportTable
from billing.reports.usage_rows import COLUMN_OF, TIMES, usage_by_names

HITS = ("exact", "semantic", "single_flight")
_MEASURES = (
    Column("requests", "requests", ColumnKind.COUNT),
    Column("exact_hits", "exact hits", ColumnKind.COUNT),
    Column("semantic_hits", "semantic hits", ColumnKind.COUNT),
    Column("single_flight_hits", "single-flight hits", ColumnKind.COUNT),
    Column("hit_ratio_ppm", "hit ratio", ColumnKind.RATIO),
    Column("saved_input_tokens", "input tokens saved", ColumnKind.COUNT),
    Column("saved_output_tokens", "output tokens saved", ColumnKind.COUNT),
    Column("full_nano_usd", "full price of hits", ColumnKind.MONEY),
    Column("charged_nano_usd", "charged for hits", ColumnKind.MONEY),
    Column("saved_nano_usd", "saved", ColumnKind.MONEY),
    Column("prefix_cached_tokens", "prefix-cached tokens", ColumnKind.COUNT),
    Column("spent_nano_usd", "spent", ColumnKind.MONEY),
)


_SUMS = (
    "requests",
    "cached_input_tokens",
    "amount_nano_usd",
    "saved_input_tokens",
    "saved_output_tokens",
    "saved_nano_usd",
)


async def build(session: AsyncSession, query: ReportQuery) -> ReportTable:
    """Rows by `query.by`, with a total. `hit_ratio_ppm` is hits of all requests, in parts per million."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    total: dict[str, Any] = {}
    for key, row in await usage_by_names(session, query, ["cache_outcome"], sums=_SUMS):
        for into in (groups.setdefault(key, dict(zip(query.by, key, strict=True))), total):
            _add(into, row)
    for into in (*groups.values(), total):
        _ratio(into)
    heads = tuple(Column(name, name.replace("_", " "), ColumnKind.TEXT) for name in query.by)
    rows = [groups[key] for key in sorted(groups, key=lambda k: tuple(map(str, k)))][: query.limit]
    return ReportTable(name="cache_savings", columns=(*heads, *_MEASURES), rows=rows, total=total)


def _add(into: dict[str, Any], row: dict[str, Any]) -> None:
    def add(name: str, value: int) -> None:
        into[name] = into.get(name, 0) + value

    add("requests", row["requests"])
    for outcome in HITS:
        add(f"{outcome}_hits", row["requests"] if row["cache_outcome"] == outcome else 0)
    charged = row["amount_nano_usd"] if row["cache_outcome"] in HITS else 0
    add("charged_nano_usd", charged)
    add("full_nano_usd", row["saved_nano_usd"] + charged)
    add("prefix_cached_tokens", row["cached_input_tokens"])
    add("spent_nano_usd", row["amount_nano_usd"])
    for name in ("saved_input_tokens", "saved_output_tokens", "saved_nano_usd"):
        add(name, row[name])


def _ratio(into: dict[str, Any]) -> None:
    hits = sum(into.get(f"{outcome}_hits", 0) for outcome in HITS)
    requests = into.get("requests", 0)
    into["hit_ratio_ppm"] = hits * 1_000_000 // requests if requests else 0


REPORT = Report(
    name="cache_savings",
    title="What the caches saved",
    dimensions=(*COLUMN_OF, *TIMES),
    default_by=("tenant", "model"),
    build=build,
)
