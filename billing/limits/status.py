"""What is left and when it resets: the live state of every limit that bears on a key, for its owner and admins."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import cast

import msgspec
import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.clock import utc_now
from billing.limits.policy import Rule, compile_rule
from billing.principal import Actor, Role
from billing.quotas.quota import Shape
from billing.quotas.registry import QUOTAS
from billing.spend import Scope, spent_nano_usd
from billing.tables import LimitRule, Tenant
from billing.tenants import get_tenant


class LimitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One rule now. Amounts are in the quota's unit (nano-USD for budgets).

    `used` includes what running requests hold (`held`). `resets_at` is a budget's next window, or when a rate's bucket
    is full again; None where nothing resets by time.
    """

    scope: str
    scope_id: str
    model: str | None
    quota: str
    hard: int | None
    soft: int | None
    used: int
    held: int
    left: int | None
    resets_at: datetime | None


async def limit_status(
    redis: Redis,
    session: AsyncSession,
    actor: Actor,
    *,
    tenant: str,
    scope_ids: tuple[str, ...] | None = None,
    now: datetime | None = None,
) -> list[LimitStatus]:
    """Every rule of a tenant, or those of `scope_ids` (tenant, project and key id of one key).

    A member sees the rules of his own key, project and tenant. Raises: NotFound for a foreign tenant; RedisError.
    """
    owner = await get_tenant(session, actor, tenant)
    if actor.role is Role.MEMBER:
        scope_ids = tuple(id for id in (actor.id, actor.project_id, actor.tenant_id) if id is not None)
    audit.require_reader(actor, owner.id)
    query = sa.select(LimitRule).where(LimitRule.tenant_id == owner.id)
    if scope_ids is not None:
        query = query.where(LimitRule.scope_id.in_(scope_ids))
    query = query.order_by(LimitRule.scope_kind, LimitRule.scope_id, LimitRule.model, LimitRule.quota)
    rows = [row for row in await session.scalars(query) if row.quota in QUOTAS]
    moment = now or utc_now()
    return [await _status(redis, session, owner, compile_rule(row), moment) for row in rows]


async def _status(redis: Redis, session: AsyncSession, tenant: Tenant, rule: Rule, now: datetime) -> LimitStatus:
    if rule.quota.shape is Shape.BUDGET:
        return await _budget(redis, session, tenant, rule, now)
    if rule.quota.shape is Shape.RATE:
        return await _rate(redis, rule, now)
    if rule.quota.shape is Shape.LEASE:
        seconds, micros = await redis.time()
        busy = await redis.zcount(rule.key, seconds * 1_000_000 + micros, "+inf")
        return _made(rule, used=busy, held=busy, resets_at=None)
    return _made(rule, used=0, held=0, resets_at=None)


async def _budget(redis: Redis, session: AsyncSession, tenant: Tenant, rule: Rule, now: datetime) -> LimitStatus:
    window = rule.window(now, tenant.time_zone)
    used, held = await redis.hmget(rule.budget_key(window), ["used", "held"])
    if used is not None:
        return _made(rule, used=int(used), held=int(held or 0), resets_at=window.end)
    scope = Scope(rule.scope, rule.scope_id, rule.model, window.start, window.end)
    (spent,) = await spent_nano_usd(session, [scope])
    return _made(rule, used=spent, held=0, resets_at=window.end)


async def _rate(redis: Redis, rule: Rule, now: datetime) -> LimitStatus:
    seconds, micros = await redis.time()
    value = cast(bytes | None, await redis.get(rule.key)) or b"0/0"
    tat, _, written_under = value.partition(b"/")
    ahead_us = max(0.0, float(tat) - (seconds * 1_000_000 + micros))
    used = min(rule.capacity, math.ceil(ahead_us * int(written_under) / rule.period_us))
    return _made(rule, used=used, held=0, resets_at=now + timedelta(microseconds=ahead_us) if used else None)


def _made(rule: Rule, *, used: int, held: int, resets_at: datetime | None) -> LimitStatus:
    return LimitStatus(
        scope=rule.scope,
        scope_id=rule.scope_id,
        model=rule.model,
        quota=rule.quota.name,
        hard=rule.hard,
        soft=rule.soft,
        used=used,
        held=held,
        left=max(0, rule.hard - used) if rule.hard is not None else None,
        resets_at=resets_at,
    )
