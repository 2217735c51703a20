"""Where sums are read from: for each question the smallest roll-ups that answer it, exact at every moment.

A bucket that is marked is summed from the ledger's rows, all others from roll-ups; a day that is summed up and has no
mark from its day. All of it is one statement, so that a row is seen once, rolled up or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from billing.rollups import BY_MODEL, DAY_S, SUMS, ledger_as_rollup
from billing.tables import LedgerEntry, RollupDay, RollupMark, UsageByDay, UsageByModel, UsageRollup

Table = type[UsageRollup] | type[UsageByModel] | type[UsageByDay] | type[LedgerEntry]
Conditions = Callable[[Table], list[sa.ColumnElement[bool]]]
_FAR = 2**40  # Unix seconds beyond any date


def usage_source(
    columns: Sequence[str],
    filtered: Sequence[str],
    conditions: Conditions,
    *,
    start: int | None,
    end: int | None,
    whole_days: bool,
    dialect: str,
    sums: Sequence[str] = ("requests", *SUMS),
) -> sa.Subquery:
    """`bucket`, `columns` and `sums` of usage in [start, end) Unix seconds, to be grouped further by the caller.

    `filtered` are the columns that `conditions` looks at. `whole_days`: the caller does not look at `bucket`, so that
    it may be a day's.
    """
    names = ("bucket", *columns, *sums)
    first, last = start or 0, end or _FAR
    fresh = ledger_as_rollup().where(_is_marked(dialect), *_within(LedgerEntry, first, last), *conditions(LedgerEntry))
    inner = fresh.subquery()
    legs: list[sa.Select[Any]] = [sa.select(*(inner.c[name] for name in names))]
    if whole_days:  # the shortest of the three over long ranges
        legs += _by_days(names, conditions, first, last)
    elif {*columns, *filtered} <= set(BY_MODEL):
        legs.append(_clean(UsageByModel, names, conditions, first, last))
    else:
        legs.append(_clean(UsageRollup, names, conditions, first, last))
    return sa.union_all(*legs).subquery("usage")


def _is_marked(dialect: str) -> sa.ColumnElement[bool]:
    """The ledger's rows whose bucket is marked, found by the bucket's index.

    PostgreSQL plans IN (SELECT ...) as a join and read all of 5 million rows for it; an array is looked up.
    """
    marked = sa.select(RollupMark.bucket).distinct()
    if dialect == "postgresql":
        return LedgerEntry.bucket == sa.any_(sa.func.ARRAY(marked.scalar_subquery(), type_=sa.ARRAY(sa.BigInteger())))
    return LedgerEntry.bucket.in_(marked)


def _clean(table: Table, names: Sequence[str], conditions: Conditions, first: int, last: int) -> sa.Select[Any]:
    query = sa.select(*(getattr(table, name) for name in names))
    return query.where(
        table.bucket.not_in(sa.select(RollupMark.bucket)), *_within(table, first, last), *conditions(table)
    )


def _by_days(names: Sequence[str], conditions: Conditions, first: int, last: int) -> list[sa.Select[Any]]:
    """Summed-up days that lie whole in the range and have no mark; 15 minutes of the rest, day by day."""
    width: sa.ColumnElement[int] = sa.literal_column(str(DAY_S))
    marked_days = sa.select(RollupMark.bucket - RollupMark.bucket % width)
    usable = sa.select(RollupDay.day).where(
        RollupDay.day >= first, RollupDay.day <= last - DAY_S, RollupDay.day.not_in(marked_days)
    )
    days = sa.select(*(getattr(UsageByDay, name) for name in names)).where(
        UsageByDay.bucket.in_(usable), *conditions(UsageByDay)
    )
    # Gaps between usable days as ranges, so that the 15-minute table is read by its key and not as a whole.
    day = usable.subquery()
    edges = sa.union_all(
        sa.select(sa.literal(first, sa.BigInteger()).label("start"), sa.literal(0).label("is_day")),
        sa.select(day.c.day + DAY_S, sa.literal(1)),
    ).subquery()
    after = sa.select(sa.func.min(RollupDay.day)).where(RollupDay.day >= edges.c.start, RollupDay.day.in_(usable))
    gaps = sa.select(
        edges.c.start.label("start"),
        sa.func.coalesce(after.correlate(edges).scalar_subquery(), sa.literal(last, sa.BigInteger())).label("end"),
    ).subquery("gaps")
    rest = (
        sa.select(*(getattr(UsageRollup, name) for name in names))
        .join(gaps, sa.and_(UsageRollup.bucket >= gaps.c.start, UsageRollup.bucket < gaps.c.end))
        .where(UsageRollup.bucket.not_in(sa.select(RollupMark.bucket)), *conditions(UsageRollup))
    )
    return [days, rest]


def _within(table: Table, first: int, last: int) -> tuple[sa.ColumnElement[bool], ...]:
    return table.bucket >= first, table.bucket < last
