"""What a token costs: versioned prices by model and tier, tenant overrides, discounts; what a GPU's hour costs us.

An override is final: discounts come off the list price only. A tier without a price of its own costs what `default`
costs. No price in force is an error, never zero. Who asks for the price in force uses `PriceBook`.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.clock import check_moment, utc_now
from billing.db import note_change
from billing.errors import Conflict, Invalid, NotFound
from billing.ids import new_id
from billing.money import format_usd
from billing.price_book import PriceBook
from billing.principal import SERVICE_TIERS, Actor, Role
from billing.rates import Amounts, Rates, TokenCounts
from billing.tables import Discount, GpuPrice, Price
from billing.tenants import get_tenant

__all__ = [
    "Amounts",
    "PriceBook",
    "Rates",
    "TokenCounts",
    "end_price",
    "list_prices",
    "set_discount",
    "set_gpu_price",
    "set_price",
]

MAX_PRICE_NANO = 10**15  # a million dollars per million tokens; keeps tokens * price within sane bounds


async def set_price(
    session: AsyncSession,
    actor: Actor,
    *,
    model: str,
    input_nano: int,
    output_nano: int,
    cached_input_nano: int | None = None,
    batch_input_nano: int | None = None,
    batch_output_nano: int | None = None,
    tenant: str | None = None,
    service_tier: str = "default",
    effective_from: datetime | None = None,
    effective_to: datetime | None = None,
) -> Price:
    """Put a price in force from a moment on; what was in force until then ends there. Operators only.

    A class left out costs what its plain one costs (cached and batch input: input; batch output: output).
    Raises: Forbidden, Invalid, Conflict when a price starts at that very moment.
    """
    audit.require_operator(actor)
    if service_tier not in SERVICE_TIERS:
        raise Invalid(
            f"service_tier: {service_tier[:40]!r} is none of {', '.join(SERVICE_TIERS)}", param="service_tier"
        )
    if not 1 <= len(model) <= 200:
        raise Invalid("model: must be 1 to 200 characters", param="model")
    _check_dates(effective_from, effective_to)
    starts = effective_from or utc_now()
    price = Price(
        id=new_id("price"),
        model=model,
        tenant_id=(await get_tenant(session, actor, tenant)).id if tenant else "",
        service_tier=service_tier,
        input_nano=_check_rate("input", input_nano),
        cached_input_nano=_check_rate("cached_input", input_nano if cached_input_nano is None else cached_input_nano),
        output_nano=_check_rate("output", output_nano),
        batch_input_nano=_check_rate("batch_input", input_nano if batch_input_nano is None else batch_input_nano),
        batch_output_nano=_check_rate("batch_output", output_nano if batch_output_nano is None else batch_output_nano),
        effective_from=starts,
        effective_to=effective_to,
        created_at=utc_now(),
        created_by=actor.id,
    )
    if effective_to is not None and effective_to <= starts:
        raise Invalid("effective_to: must be after effective_from", param="effective_to")
    try:
        async with session.begin_nested():
            session.add(price)
    except IntegrityError as exc:
        raise Conflict(f"a price of {model!r} starts at {starts.isoformat()} already") from exc
    audit.record(
        session,
        actor,
        "price.created",
        price.id,
        tenant_id=price.tenant_id or None,
        detail={
            "model": model,
            "tier": service_tier,
            "input": format_usd(input_nano),
            "output": format_usd(output_nano),
        },
    )
    note_change(session, "prices", price.id)
    return price


async def end_price(session: AsyncSession, actor: Actor, price_id: str, *, at: datetime | None = None) -> Price:
    """Let a price run out. Raises: Forbidden, NotFound, Invalid when `at` is before its start."""
    audit.require_operator(actor)
    price = await session.get(Price, price_id)
    if price is None:
        raise NotFound(f"no such price: {price_id[:80]!r}")
    moment = check_moment(at, param="at") if at is not None else utc_now()
    if moment <= price.effective_from:
        raise Invalid("effective_to: must be after effective_from", param="effective_to")
    price.effective_to = moment
    audit.record(session, actor, "price.ended", price.id, detail={"at": moment.isoformat()})
    note_change(session, "prices", price.id)
    return price


async def list_prices(
    session: AsyncSession, actor: Actor, *, tenant: str | None = None, model: str | None = None
) -> list[Price]:
    """List prices and, for who may see them, overrides; newest first within a model."""
    query = sa.select(Price).order_by(Price.model, Price.tenant_id, Price.service_tier, Price.effective_from.desc())
    if tenant is not None:
        query = query.where(Price.tenant_id.in_(["", (await get_tenant(session, actor, tenant)).id]))
    elif actor.role is not Role.OPERATOR:
        query = query.where(Price.tenant_id.in_(["", actor.tenant_id or ""]))
    if model is not None:
        query = query.where(Price.model == model)
    return list(await session.scalars(query))


async def set_discount(
    session: AsyncSession,
    actor: Actor,
    tenant: str,
    *,
    ppm: int,
    model: str = "",
    effective_from: datetime | None = None,
    effective_to: datetime | None = None,
) -> Discount:
    """Parts per million off the list price. Operators only. Raises: Forbidden, NotFound, Invalid, Conflict."""
    audit.require_operator(actor)
    if not 0 <= ppm <= 1_000_000:
        raise Invalid(f"discount: {ppm} parts per million is not between 0 and 1000000", param="discount")
    owner = await get_tenant(session, actor, tenant)
    _check_dates(effective_from, effective_to)
    now = utc_now()
    row = Discount(
        id=new_id("disc"),
        tenant_id=owner.id,
        model=model,
        ppm=ppm,
        effective_from=effective_from or now,
        effective_to=effective_to,
        created_at=now,
        created_by=actor.id,
    )
    try:
        async with session.begin_nested():
            session.add(row)
    except IntegrityError as exc:
        raise Conflict("a discount of this tenant and model starts at that moment already") from exc
    audit.record(session, actor, "discount.created", row.id, tenant_id=owner.id, detail={"model": model, "ppm": ppm})
    note_change(session, "prices", row.id)
    return row


async def list_discounts(session: AsyncSession, actor: Actor, *, tenant: str | None = None) -> list[Discount]:
    """One's own, or (operators) everybody's; newest first within a model. Raises: NotFound for a foreign tenant."""
    query = sa.select(Discount).order_by(Discount.tenant_id, Discount.model, Discount.effective_from.desc())
    if tenant is not None:
        query = query.where(Discount.tenant_id == (await get_tenant(session, actor, tenant)).id)
    elif actor.role is not Role.OPERATOR:
        query = query.where(Discount.tenant_id == actor.tenant_id)
    return list(await session.scalars(query))


async def list_gpu_prices(session: AsyncSession, actor: Actor) -> list[GpuPrice]:
    """What the hardware costs us, newest first within an upstream. Operators only. Raises: Forbidden."""
    audit.require_operator(actor)
    query = sa.select(GpuPrice).order_by(GpuPrice.upstream, GpuPrice.effective_from.desc())
    return list(await session.scalars(query))


async def set_gpu_price(
    session: AsyncSession, actor: Actor, *, upstream: str, hour_nano: int, effective_from: datetime | None = None
) -> GpuPrice:
    """What an hour of the hardware behind `upstream` costs us. Operators only. Raises: Forbidden, Invalid, Conflict."""
    audit.require_operator(actor)
    _check_dates(effective_from)
    now = utc_now()
    row = GpuPrice(
        id=new_id("gpu"),
        upstream=upstream,
        hour_nano=_check_rate("hour", hour_nano),
        effective_from=effective_from or now,
        created_at=now,
        created_by=actor.id,
    )
    try:
        async with session.begin_nested():
            session.add(row)
    except IntegrityError as exc:
        raise Conflict(f"a price of {upstream!r} starts at that moment already") from exc
    audit.record(
        session, actor, "gpu_price.created", row.id, detail={"upstream": upstream, "hour": format_usd(hour_nano)}
    )
    note_change(session, "prices", row.id)
    return row


def _check_dates(effective_from: datetime | None, effective_to: datetime | None = None) -> None:
    """Raises: Invalid for a year beyond what the books hold."""
    for name, moment in (("effective_from", effective_from), ("effective_to", effective_to)):
        if moment is not None:
            check_moment(moment, param=name)


def _check_rate(name: str, nano: int) -> int:
    if not 0 <= nano <= MAX_PRICE_NANO:
        raise Invalid(f"{name}: {format_usd(nano)} USD is not between 0 and {format_usd(MAX_PRICE_NANO)}", param=name)
    return nano
