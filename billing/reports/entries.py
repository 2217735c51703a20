"""Every ledger row of one request, whole: what "why was this charged" is answered from."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.errors import NotFound
from billing.principal import Actor, Role
from billing.tables import LedgerEntry


async def entries_of(session: AsyncSession, actor: Actor, request_id: str) -> list[LedgerEntry]:
    """Oldest first: attempts, corrections, adjustments. Raises: NotFound when there is none the actor may see."""
    query = sa.select(LedgerEntry).where(LedgerEntry.request_id == request_id).order_by(LedgerEntry.id)
    if actor.role is not Role.OPERATOR:
        query = query.where(LedgerEntry.tenant_id == actor.tenant_id)
    if actor.role is Role.MEMBER:
        query = query.where(LedgerEntry.project_id == actor.project_id)
    rows = list(await session.scalars(query))
    if not rows:
        raise NotFound(f"the ledger has no row of request {request_id[:80]!r}")
    return rows
