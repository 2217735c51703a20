"""Limit rules: set, list, remove. Changing one is hot: every gateway reads its tenant's rules anew."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.clock import utc_now
from billing.db import note_change
from billing.errors import Forbidden, Invalid, NotFound
from billing.ids import new_id
from billing.money import MAX_NANO_USD
from billing.principal import Actor, Role
from billing.quotas.quota import Shape
from billing.quotas.registry import quota_named
from billing.tables import ApiKey, LimitRule, Project
from billing.tenants import get_tenant

SCOPES = ("tenant", "project", "key")
MAX_RATE = 10**12  # a rate's product with its period must stay a number Lua can count


async def set_limit(
    session: AsyncSession,
    actor: Actor,
    *,
    scope_kind: str,
    scope_id: str,
    quota: str,
    hard: int | None = None,
    soft: int | None = None,
    model: str = "",
) -> LimitRule:
    """Set or replace one quota of one scope. `hard` refuses, `soft` alerts; at least one of them.

    The operator sets any; a tenant's admin those of his projects and keys, never the tenant's own.
    Raises: Forbidden, NotFound, Invalid.
    """
    tenant_id, owner_id = await _owner(session, actor, scope_kind, scope_id)
    _check_may_set(actor, tenant_id, scope_kind)
    _check_values(quota, hard, soft)
    rule = await _find(session, scope_kind, owner_id, quota, model)
    old = {"hard": rule.hard, "soft": rule.soft} if rule is not None else None
    if rule is None:
        rule = LimitRule(
            id=new_id("lim"), tenant_id=tenant_id, scope_kind=scope_kind, scope_id=owner_id, model=model, quota=quota
        )
        session.add(rule)
    rule.hard, rule.soft, rule.updated_at = hard, soft, utc_now()
    await session.flush()
    detail = {"scope": scope_kind, "quota": quota, "model": model, "old": old, "new": {"hard": hard, "soft": soft}}
    audit.record(session, actor, "rate_limit.updated", rule.id, tenant_id=tenant_id, detail=detail)
    note_change(session, "limits", tenant_id)
    return rule


async def remove_limit(
    session: AsyncSession, actor: Actor, *, scope_kind: str, scope_id: str, quota: str, model: str = ""
) -> None:
    """Raises: Forbidden, NotFound when there is no such rule."""
    tenant_id, owner_id = await _owner(session, actor, scope_kind, scope_id)
    _check_may_set(actor, tenant_id, scope_kind)
    rule = await _find(session, scope_kind, owner_id, quota, model)
    if rule is None:
        raise NotFound(f"{scope_kind} {scope_id[:80]!r} has no limit {quota[:40]!r}")
    await session.delete(rule)
    audit.record(
        session,
        actor,
        "rate_limit.deleted",
        rule.id,
        tenant_id=tenant_id,
        detail={"scope": scope_kind, "quota": quota, "model": model, "old": {"hard": rule.hard, "soft": rule.soft}},
    )
    note_change(session, "limits", tenant_id)


async def list_limits(
    session: AsyncSession,
    actor: Actor,
    *,
    tenant: str | None = None,
    scope_kind: str | None = None,
    scope_id: str | None = None,
) -> list[LimitRule]:
    """Rules of one tenant (an operator may leave it out), in a stable order."""
    query = sa.select(LimitRule).order_by(
        LimitRule.tenant_id, LimitRule.scope_kind, LimitRule.scope_id, LimitRule.model, LimitRule.quota
    )
    if tenant is not None:
        query = query.where(LimitRule.tenant_id == (await get_tenant(session, actor, tenant)).id)
    elif actor.role is not Role.OPERATOR:
        query = query.where(LimitRule.tenant_id == actor.tenant_id)
    if actor.role is Role.MEMBER:
        query = query.where(LimitRule.scope_id.in_([actor.project_id, actor.id]))
    if scope_kind is not None:
        query = query.where(LimitRule.scope_kind == scope_kind)
    if scope_id is not None:
        query = query.where(LimitRule.scope_id == scope_id)
    return list(await session.scalars(query))


async def _owner(session: AsyncSession, actor: Actor, scope_kind: str, scope_id: str) -> tuple[str, str]:
    """(tenant id, the scope's id), of a scope the actor may see."""
    if scope_kind == "tenant":
        tenant = await get_tenant(session, actor, scope_id)
        return tenant.id, tenant.id
    if scope_kind not in SCOPES:
        raise Invalid(f"scope: {scope_kind[:40]!r} is none of {', '.join(SCOPES)}", param="scope")
    row: Project | ApiKey | None
    if scope_kind == "project":
        row = await session.get(Project, scope_id)
    else:
        row = await session.get(ApiKey, scope_id)
    if row is None or (actor.role is not Role.OPERATOR and row.tenant_id != actor.tenant_id):
        raise NotFound(f"no such {scope_kind}: {scope_id[:80]!r}")
    return row.tenant_id, row.id


def _check_may_set(actor: Actor, tenant_id: str, scope_kind: str) -> None:
    audit.require_admin(actor, tenant_id)
    if scope_kind == "tenant" and actor.role is not Role.OPERATOR:
        raise Forbidden("a tenant's own limits are set by the operator")


def _check_values(name: str, hard: int | None, soft: int | None) -> None:
    quota = quota_named(name)
    if hard is None and soft is None:
        raise Invalid("limit: give a hard or a soft value", param="hard")
    top = MAX_NANO_USD if quota.shape is Shape.BUDGET else MAX_RATE
    for param, value in (("hard", hard), ("soft", soft)):
        if value is not None and not 0 <= value <= top:
            raise Invalid(f"{param}: {value} is not between 0 and {top}", param=param)
    if soft is not None and quota.shape in (Shape.BOUND, Shape.LEASE):
        raise Invalid(f"soft: {name} has no soft limit", param="soft")


async def _find(session: AsyncSession, scope_kind: str, scope_id: str, quota: str, model: str) -> LimitRule | None:
    return await session.scalar(
        sa.select(LimitRule).where(
            LimitRule.scope_kind == scope_kind,
            LimitRule.scope_id == scope_id,
            LimitRule.quota == quota,
            LimitRule.model == model,
        )
    )
