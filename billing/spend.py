"""Exact sums of the ledger over a window, quick at any size: clean buckets from roll-ups, marked ones from rows.

A mark commits together with the rows it stands for, and both halves are read in one statement, so that a row is
counted once whether or not it has been rolled up.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.clock import bucket_of
from billing.tables import LedgerEntry, RollupMark, UsageRollup


class Scope(msgspec.Struct, frozen=True):
    """Whose spending: `kind` tenant, project or key with its id, for one model or (None) all, in [start, end)."""

    kind: str
    id: str
    model: str | None
    start: datetime
    end: datetime


async def spent_nano_usd(session: AsyncSession, scopes: Sequence[Scope]) -> list[int]:
    """What each scope's rows add up to, in nano-USD."""
    sums = [await session.scalar(_spent(scope)) for scope in scopes]
    return [int(total or 0) for total in sums]


def _spent(scope: Scope) -> sa.Select[Any]:
    marked = sa.select(RollupMark.bucket)
    halves = []
    for table, clean in ((UsageRollup, True), (LedgerEntry, False)):
        owner = {"tenant": table.tenant_id, "project": table.project_id, "key": table.key_id}[scope.kind]
        query = sa.select(sa.func.coalesce(sa.func.sum(table.amount_nano_usd), 0)).where(
            owner == scope.id,
            table.bucket >= bucket_of(scope.start),
            table.bucket < bucket_of(scope.end),
            table.bucket.not_in(marked) if clean else table.bucket.in_(marked),
        )
        if scope.model is not None:
            query = query.where(table.model == scope.model)
        halves.append(query.scalar_subquery())
    return sa.select(halves[0] + halves[1])
