"""An operator's credit or debit: one more row of the ledger, audited, and the budgets' counters moved by as much.

Nothing is ever edited: what was charged wrongly is set right by a row that says so.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.clock import Clock, utc_now
from billing.db import Database
from billing.entry import Entry
from billing.errors import Conflict, Invalid
from billing.ids import new_id
from billing.keys import get_key
from billing.ledger import find_entry, insert_entries
from billing.limits.policy import compile_rule
from billing.money import MAX_NANO_USD, format_usd, parse_usd
from billing.principal import Actor
from billing.quotas.quota import Shape
from billing.quotas.registry import QUOTAS
from billing.tables import EntryKind, LedgerEntry, LimitRule, Tenant
from billing.tenants import get_project, get_tenant

MAX_NOTE = 500
log = logging.getLogger(__name__)


def signed_amount(credit_usd: str | None, debit_usd: str | None) -> int:
    """Nano-USD from exactly one of the two; a credit is negative. Raises: Invalid."""
    if (credit_usd is None) == (debit_usd is None):
        raise Invalid("amount: give a credit or a debit, one of the two", param="credit_usd")
    amount = parse_usd(str(credit_usd if credit_usd is not None else debit_usd), param="amount")
    if amount <= 0:
        raise Invalid("amount: a credit or a debit is above 0", param="amount")
    return -amount if credit_usd is not None else amount


async def adjust(
    db: Database,
    redis: Redis,
    actor: Actor,
    *,
    tenant: str,
    amount_nano: int,
    note: str,
    id: str | None = None,
    project: str | None = None,
    key: str | None = None,
    clock: Clock = utc_now,
) -> LedgerEntry:
    """Book `amount_nano` (negative: a credit) to a tenant, and where given to its project and key. Operators only.

    `id` makes it idempotent: the same value on every retry books one row. The sums of reports follow at once; so do
    budgets, unless Redis is away: then `weir reconcile` moves them.
    Raises: Forbidden, NotFound, Invalid, Conflict when `id` was booked with another amount or to another tenant.
    """
    audit.require_operator(actor)
    if not 1 <= len(note) <= MAX_NOTE:
        raise Invalid(f"note: must be 1 to {MAX_NOTE} characters, got {len(note)}", param="note")
    if id is not None and not 1 <= len(id) <= 60:
        raise Invalid(f"id: must be 1 to 60 characters, got {len(id)}", param="id")
    if amount_nano == 0 or abs(amount_nano) > MAX_NANO_USD:
        raise Invalid(f"amount: {format_usd(amount_nano)} USD cannot be booked", param="amount")
    async with db.begin() as session:
        owner = await get_tenant(session, actor, tenant)
        entry = await _entry(
            session, actor, owner, amount_nano=amount_nano, note=note, id=id, project=project, key=key, clock=clock
        )
        counters = await _counters(session, redis, owner, entry)
        fresh = await insert_entries(session, [entry.row(clock())], db.dialect)
        booked = await find_entry(session, entry)
        assert booked is not None
        if not fresh:
            if (booked.amount_nano_usd, booked.tenant_id) != (amount_nano, owner.id):
                raise Conflict(f"adjustment {entry.request_id!r} is booked with another amount or to another tenant")
            return booked
        detail = {"amount": format_usd(amount_nano), "note": note}
        audit.record(
            session, actor, "ledger.adjusted", entry.request_id, tenant_id=owner.id, project_id=project, detail=detail
        )
    await _move(redis, counters, amount_nano)
    return booked


async def _entry(
    session: AsyncSession,
    actor: Actor,
    owner: Tenant,
    *,
    amount_nano: int,
    note: str,
    id: str | None,
    project: str | None,
    key: str | None,
    clock: Clock,
) -> Entry:
    project_id, key_id = "", ""
    if project is not None:
        project_id = (await get_project(session, actor, project, tenant=owner.id)).id
    if key is not None:
        found = await get_key(session, actor, key, project=project_id or None)
        if found.tenant_id != owner.id:
            raise Invalid(f"key: {key[:80]!r} is not one of tenant {owner.slug!r}", param="key")
        project_id, key_id = found.project_id, found.id
    return Entry(
        request_id=f"adj_{id}" if id is not None else new_id("adj"),
        kind=EntryKind.ADJUSTMENT,
        tenant_id=owner.id,
        project_id=project_id,
        key_id=key_id,
        endpoint="adjustment",
        model="",
        accepted_at=clock(),
        adjustment_nano=amount_nano,
        amount_nano_usd=amount_nano,
        origin="operator",
        note=note,
    )


async def _counters(session: AsyncSession, redis: Redis, owner: Tenant, entry: Entry) -> list[str]:
    """The budgets' counters that exist before the row does: one that is started later reads the row by itself."""
    scopes = [owner.id, entry.project_id, entry.key_id]
    query = sa.select(LimitRule).where(LimitRule.scope_id.in_(scopes), LimitRule.model == "")
    keys = [
        compile_rule(row).budget_key(compile_rule(row).window(entry.accepted_at, owner.time_zone))
        for row in await session.scalars(query)
        if row.quota in QUOTAS and QUOTAS[row.quota].shape is Shape.BUDGET
    ]
    try:
        return [key for key in keys if await redis.exists(key)]
    except (RedisError, OSError):
        return []


async def _move(redis: Redis, counters: list[str], amount_nano: int) -> None:
    try:
        for key in counters:
            await redis.hincrby(key, "used", amount_nano)
    except (RedisError, OSError) as exc:
        log.warning("budget counters do not follow an adjustment, reconcile moves them: %s", type(exc).__name__)
