"""The audit log: written in the transaction of the act, read by page. And the role check every act starts with."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.clock import utc_now
from billing.errors import Forbidden, Invalid, NotFound
from billing.ids import new_id
from billing.principal import Actor, Role
from billing.tables import AuditEvent

MAX_PAGE = 1000


def require_operator(actor: Actor) -> None:
    """Raises: Forbidden unless the actor is an operator."""
    if actor.role is not Role.OPERATOR:
        raise Forbidden("this needs the operator role")


def require_admin(actor: Actor, tenant_id: str) -> None:
    """Raises: NotFound for a foreign tenant (as if it were not there), Forbidden for a member."""
    require_reader(actor, tenant_id)
    if actor.role is Role.MEMBER:
        raise Forbidden("this needs the admin role")


def require_reader(actor: Actor, tenant_id: str, project_id: str | None = None) -> None:
    """Raises: NotFound for a foreign tenant, and for a member another project than his own."""
    if actor.role is Role.OPERATOR:
        return
    if actor.tenant_id != tenant_id:
        raise NotFound("no such tenant")
    if actor.role is Role.MEMBER and project_id is not None and actor.project_id != project_id:
        raise NotFound("no such project")


def record(
    session: AsyncSession,
    actor: Actor,
    action: str,
    resource_id: str,
    *,
    tenant_id: str | None = None,
    project_id: str | None = None,
    detail: dict[str, Any] | None = None,
) -> None:
    """Add one event to the act's own transaction. `detail` must hold no secret."""
    session.add(
        AuditEvent(
            id=new_id("audit"),
            effective_at=utc_now(),
            action=action,
            actor_kind=actor.kind,
            actor_id=actor.id,
            actor_role=str(actor.role),
            tenant_id=tenant_id,
            project_id=project_id,
            resource_id=resource_id,
            request_id=actor.request_id,
            ip=actor.ip,
            detail=detail or {},
        )
    )


async def list_events(
    session: AsyncSession,
    actor: Actor,
    *,
    tenant_id: str | None = None,
    project_ids: Sequence[str] = (),
    actions: Sequence[str] = (),
    actor_ids: Sequence[str] = (),
    resource_ids: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    after: str | None = None,
    before: str | None = None,
    limit: int = 20,
) -> list[AuditEvent]:
    """Newest first, at most `limit`; `after` and `before` are event ids (keyset). An admin sees his tenant only."""
    if actor.role is Role.MEMBER:
        raise Forbidden("the audit log needs the admin role")
    if actor.role is not Role.OPERATOR:
        if tenant_id not in (None, actor.tenant_id):
            raise NotFound("no such tenant")
        tenant_id = actor.tenant_id
    if not 1 <= limit <= MAX_PAGE:
        raise Invalid(f"limit: {limit} is not between 1 and {MAX_PAGE}", param="limit")
    query = sa.select(AuditEvent).order_by(AuditEvent.id.desc()).limit(limit)
    if tenant_id is not None:
        query = query.where(AuditEvent.tenant_id == tenant_id)
    for column, values in (
        (AuditEvent.project_id, project_ids),
        (AuditEvent.action, actions),
        (AuditEvent.actor_id, actor_ids),
        (AuditEvent.resource_id, resource_ids),
    ):
        if values:
            query = query.where(column.in_(values))
    if since is not None:
        query = query.where(AuditEvent.effective_at >= since)
    if until is not None:
        query = query.where(AuditEvent.effective_at < until)
    if after is not None:
        query = query.where(AuditEvent.id < after)
    if before is not None:
        query = query.where(AuditEvent.id > before)
    return list(await session.scalars(query))
