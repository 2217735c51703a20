"""Credits and debits: rows of their own, by an operator, audited; budgets see them at once."""

from __future__ import annotations

import logging
from datetime import datetime

import sqlalchemy as sa
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.clock import Clock, utc_now
from billing.db import Database
from billing.entry import Entry
from billing.errors import Conflict, Invalid
from billing.ledger import find_entry, insert_entries
from billing.limits.policy import compile_rule
from billing.limits.stage import MOVE, Stage
from billing.money import MAX_NANO_USD, NANO, format_usd
from billing.principal import Actor
from billing.quotas.quota import Shape
from billing.quotas.registry import QUOTAS
from billing.tables import EntryKind, LedgerEntry, LimitRule
from billing.tenants import get_project, get_tenant

log = logging.getLogger(__name__)

# All of a tenant's debits and credits by size: a sum over them, in any order, leaves half of 64 bits to its requests.
MAX_ADJUSTED_NANO_USD = 2**62


async def adjust(
    db: Database,
    redis: Redis,
    actor: Actor,
    *,
    id: str,
    tenant: str,
    amount_nano: int,
    note: str,
    project: str | None = None,
    clock: Clock = utc_now,
) -> bool:
    """Book a debit, or (negative) a credit, on a tenant or one of its projects. False: it was booked before.

    `id` makes it idempotent: the same value on every retry. Operators only.
    Raises: Forbidden, NotFound, Conflict when `id` was booked with another amount, Invalid for an amount beyond
    MAX_NANO_USD or one that takes the tenant's adjustments beyond MAX_ADJUSTED_NANO_USD.
    """
    audit.require_operator(actor)
    if not 1 <= len(id) <= 64:
        raise Invalid(f"id: must be 1 to 64 characters, got {len(id)}", param="id")
    if amount_nano == 0:
        raise Invalid("amount: a credit or a debit is not 0", param="amount")
    if abs(amount_nano) > MAX_NANO_USD:
        raise Invalid(
            f"amount: {format_usd(amount_nano)} USD is beyond the largest adjustment, {format_usd(MAX_NANO_USD)} USD",
            param="amount",
        )
    if not 1 <= len(note) <= 500:
        raise Invalid(f"note: must be 1 to 500 characters, got {len(note)}", param="note")
    now = clock()
    async with db.begin() as session:
        owner = await get_tenant(session, actor, tenant)
        within = await get_project(session, actor, project, tenant=owner.id) if project is not None else None
        entry = _entry(
            id, owner.id, within.id if within is not None else "", amount_nano=amount_nano, note=note, now=now
        )
        if not await insert_entries(session, [entry.row(now)], db.dialect):
            booked = await find_entry(session, entry)
            if booked is None or (booked.tenant_id, booked.amount_nano_usd) != (owner.id, amount_nano):
                raise Conflict(f"adjustment {id!r} is booked with another amount")
            return False
        await _check_total(session, owner.id)
        detail = {"amount_usd": format_usd(amount_nano), "note": note}
        audit.record(session, actor, "adjustment.created", id, tenant_id=owner.id, detail=detail)
        rules = [
            compile_rule(row)
            for row in await session.scalars(sa.select(LimitRule).where(LimitRule.tenant_id == owner.id))
            if row.quota in QUOTAS and QUOTAS[row.quota].shape is Shape.BUDGET
        ]
    for rule in rules:
        if rule.model is None and rule.scope_id in (owner.id, entry.project_id):
            key = rule.budget_key(rule.window(now, owner.time_zone))
            try:
                await Stage(MOVE, [key], [str(amount_nano), "0"], int).run(redis)
            except (RedisError, OSError) as exc:  # booked all the same; the next reconciling moves the counter
                log.warning("a budget's counter was not moved: %s", type(exc).__name__)
    return True


async def _check_total(session: AsyncSession, tenant_id: str) -> None:
    """Raises: Invalid when the tenant's adjustments, the one just inserted among them, are too large for a sum.

    Added up in whole dollars, as the sum of nano-USD is what might not fit.
    """
    adjusted = sa.select(sa.func.sum(sa.func.abs(LedgerEntry.adjustment_nano) // NANO)).where(
        LedgerEntry.tenant_id == tenant_id, LedgerEntry.kind == EntryKind.ADJUSTMENT
    )
    if int(await session.scalar(adjusted) or 0) > MAX_ADJUSTED_NANO_USD // NANO:
        largest = format_usd(MAX_ADJUSTED_NANO_USD)
        raise Invalid(f"amount: the tenant's adjustments would come to more than {largest} USD", param="amount")


def _entry(id: str, tenant_id: str, project_id: str, *, amount_nano: int, note: str, now: datetime) -> Entry:
    return Entry(
        request_id=id,
        kind=EntryKind.ADJUSTMENT,
        tenant_id=tenant_id,
        project_id=project_id,
        key_id="",
        endpoint="adjustment",
        model="",
        accepted_at=now,
        adjustment_nano=amount_nano,
        amount_nano_usd=amount_nano,
        origin="operator",
        note=note,
    )
