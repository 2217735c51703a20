"""What the ids in a report are called: slugs of tenants and projects, names of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from billing.tables import ApiKey, Project, Tenant

CHUNK = 500  # ids in one query: SQLite takes 32,766 parameters, PostgreSQL's planner is happier with few
_SOURCES: dict[str, tuple[InstrumentedAttribute[str], InstrumentedAttribute[str]]] = {
    "tenant": (Tenant.id, Tenant.slug),
    "project": (Project.id, Project.slug),
    "key": (ApiKey.id, ApiKey.name),
}
OWNERS = tuple(_SOURCES)


async def names_in(session: AsyncSession, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By id, for every tenant, project and key that `rows` name (as `tenant` or `tenant_id` ...).

    The rows decide what is looked up, so a caller sees no name of what he does not see already.
    """
    names: dict[str, str] = {}
    for kind, (id_column, name_column) in _SOURCES.items():
        ids = {row.get(kind) or row.get(f"{kind}_id") for row in rows} - {None, ""}
        for chunk in _chunks(sorted(str(id) for id in ids)):
            found = await session.execute(sa.select(id_column, name_column).where(id_column.in_(chunk)))
            names.update((id, name) for id, name in found)
    return names


def _chunks(ids: list[str]) -> Iterable[list[str]]:
    return (ids[first : first + CHUNK] for first in range(0, len(ids), CHUNK))
