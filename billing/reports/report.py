"""What a report is: a name, columns, and a function from a query to rows. The CLI, endpoint and dashboard show it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.db import plan_for_reports
from billing.errors import Invalid
from billing.principal import Actor, Role

MAX_GROUPS = 100_000


class ColumnKind(StrEnum):
    """How to show a column."""

    TEXT = "text"
    COUNT = "count"
    MONEY = "money"  # nano-USD
    MICROSECONDS = "microseconds"
    RATIO = "ratio"  # parts per million
    TIME = "time"


class Column(msgspec.Struct, frozen=True):
    """A column's key in each row, its title and kind."""

    key: str
    title: str
    kind: ColumnKind


class ReportQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: dimensions to group by, [start, end), filters by dimension, the zone that cuts days.

    `tenant_id` None is every tenant (operators only).
    """

    by: tuple[str, ...] = ()
    start: datetime | None = None
    end: datetime | None = None
    tenant_id: str | None = None
    filters: dict[str, tuple[str, ...]] = {}
    time_zone: str = "UTC"
    limit: int = 1000
    after: str | None = None


class ReportTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows as dicts of plain values; money stays a whole number of nano-USD until it is shown."""

    name: str
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]
    total: dict[str, Any] | None = None
    next_after: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the registry. `dimensions` are the names `by` and `filters` may use.

    `operators_only`: it tells what tenants should not know, such as what their tokens cost us.
    """

    name: str
    title: str
    dimensions: tuple[str, ...]
    default_by: tuple[str, ...]
    build: Callable[[AsyncSession, ReportQuery], Awaitable[ReportTable]]
    operators_only: bool = False

    async def run(self, session: AsyncSession, actor: Actor, query: ReportQuery) -> ReportTable:
        """Raises: Forbidden or NotFound outside the actor's tenant (a member: project); Invalid for a bad query."""
        if self.operators_only:
            audit.require_operator(actor)
        query = narrow(actor, query)
        by = query.by or self.default_by
        for name in (*by, *query.filters):
            if name not in self.dimensions:
                raise Invalid(f"by: {name[:40]!r} is none of {', '.join(self.dimensions)}", param="by")
        if query.start and query.end and query.start >= query.end:
            raise Invalid("end: must be after start", param="end")
        if not 1 <= query.limit <= MAX_GROUPS:
            raise Invalid(f"limit: {query.limit} is not between 1 and {MAX_GROUPS}", param="limit")
        await plan_for_reports(session)
        return await self.build(session, msgspec.structs.replace(query, by=by))


def narrow(actor: Actor, query: ReportQuery) -> ReportQuery:
    """The query within the actor's reach: an admin's tenant, a member's project. Raises: NotFound beyond it."""
    if actor.role is Role.OPERATOR:
        return query
    tenant_id = query.tenant_id or actor.tenant_id or ""
    audit.require_reader(actor, tenant_id)
    filters = dict(query.filters)
    if actor.role is Role.MEMBER:
        wanted = filters.get("project", ())
        if wanted and set(wanted) != {actor.project_id}:
            audit.require_reader(actor, tenant_id, "another")
        filters["project"] = (actor.project_id or "",)
    return msgspec.structs.replace(query, tenant_id=tenant_id, filters=filters)
