"""Exact sums of the ledger over a window, quick at any size, rolled up or not: what budgets are started from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.clock import bucket_of
from billing.db import plan_for_reports
from billing.usage_source import Table, usage_source


class Scope(msgspec.Struct, frozen=True):
    """Whose spending: `kind` tenant, project or key with its id, for one model or (None) all, in [start, end)."""

    kind: str
    id: str
    model: str | None
    start: datetime
    end: datetime


async def spent_nano_usd(session: AsyncSession, scopes: Sequence[Scope]) -> list[int]:
    """What each scope's rows add up to, in nano-USD."""
    await plan_for_reports(session)
    sums = [await session.scalar(_spent(scope, session.get_bind().dialect.name)) for scope in scopes]
    return [int(total or 0) for total in sums]


def _spent(scope: Scope, dialect: str) -> sa.Select[Any]:
    owner = {"tenant": "tenant_id", "project": "project_id", "key": "key_id"}[scope.kind]

    def conditions(table: Table) -> list[sa.ColumnElement[bool]]:
        found: list[sa.ColumnElement[bool]] = [getattr(table, owner) == scope.id]
        if scope.model is not None:
            found.append(table.model == scope.model)
        return found

    usage = usage_source(
        (),
        [owner] + (["model"] if scope.model is not None else []),
        conditions,
        start=bucket_of(scope.start),
        end=bucket_of(scope.end),
        cuts=(),
        sums=("amount_nano_usd",),
        dialect=dialect,
    )
    return sa.select(sa.func.coalesce(sa.func.sum(usage.c.amount_nano_usd), 0))
