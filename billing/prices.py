"""What a token costs: versioned prices by model and tier, tenant overrides, discounts; what a GPU's hour costs us.

An override is final: discounts come off the list price only. A tier without a price of its own costs what `default`
costs. No price in force is an error, never zero.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.bus import ChangeBus
from billing.clock import Clock, utc_now
from billing.db import Database, note_change
from billing.errors import Conflict, Invalid, NotFound, PolicyUnavailable, UnknownPrice
from billing.ids import new_id
from billing.money import charge, charge_up, format_usd, half_even
from billing.principal import SERVICE_TIERS, Actor, Role
from billing.tables import Discount, GpuPrice, Price
from billing.tenants import get_tenant

MAX_PRICE_NANO = 10**15  # a million dollars per million tokens; keeps tokens * price within sane bounds
READ_AGAIN_S = 30.0
READ_TIMEOUT_S = 5.0
_Dated = TypeVar("_Dated", Price, Discount, GpuPrice)


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The five classes; they do not overlap. `of` makes them from a usage as engines and upstreams report it."""

    input: int = 0
    cached_input: int = 0
    output: int = 0
    batch_input: int = 0
    batch_output: int = 0

    @classmethod
    def of(
        cls, *, prompt_tokens: int, cached_tokens: int = 0, completion_tokens: int = 0, batch: bool = False
    ) -> TokenCounts:
        """`cached_tokens` are part of `prompt_tokens`. Raises: Invalid when negative or cached > prompt."""
        if min(prompt_tokens, cached_tokens, completion_tokens) < 0 or cached_tokens > prompt_tokens:
            counts = f"prompt {prompt_tokens}, cached {cached_tokens}, completion {completion_tokens}"
            raise Invalid(f"usage: {counts} do not fit together", param="usage")
        if batch:
            return cls(batch_input=prompt_tokens, batch_output=completion_tokens)
        return cls(input=prompt_tokens - cached_tokens, cached_input=cached_tokens, output=completion_tokens)

    @property
    def total(self) -> int:
        """All of them."""
        return self.input + self.cached_input + self.output + self.batch_input + self.batch_output


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-USD by token class, each rounded half-even once; `total` is their exact sum."""

    input: int = 0
    cached_input: int = 0
    output: int = 0
    batch_input: int = 0
    batch_output: int = 0

    @property
    def total(self) -> int:
        """What the row charges."""
        return self.input + self.cached_input + self.output + self.batch_input + self.batch_output


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """A price in force for one tenant: nano-USD per million tokens and the discount that comes off."""

    price_id: str
    model: str
    input: int
    cached_input: int
    output: int
    batch_input: int
    batch_output: int
    discount_ppm: int = 0

    @property
    def free(self) -> bool:
        """Zero in every class, as somebody wrote down: no budget is asked."""
        return self.discount_ppm == 1_000_000 or not (
            self.input or self.cached_input or self.output or self.batch_input or self.batch_output
        )

    def amounts(self, tokens: TokenCounts) -> Amounts:
        """What the tokens cost."""
        return Amounts(
            input=charge(tokens.input, self.input, self.discount_ppm),
            cached_input=charge(tokens.cached_input, self.cached_input, self.discount_ppm),
            output=charge(tokens.output, self.output, self.discount_ppm),
            batch_input=charge(tokens.batch_input, self.batch_input, self.discount_ppm),
            batch_output=charge(tokens.batch_output, self.batch_output, self.discount_ppm),
        )

    def hold_prompt(self, prompt_tokens: int, *, batch: bool = False) -> int:
        """Nano-USD that cover the prompt however much of it is cached: the dearer rate, up, and one for the split."""
        rate = self.batch_input if batch else max(self.input, self.cached_input)
        amount = charge_up(prompt_tokens, rate, self.discount_ppm)
        return amount + 1 if amount and not batch else amount

    def hold_output(self, tokens: int, *, batch: bool = False) -> int:
        """Nano-USD that cover `tokens` of output, rounded up."""
        return charge_up(tokens, self.batch_output if batch else self.output, self.discount_ppm)


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
    moment = at or utc_now()
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


def _check_rate(name: str, nano: int) -> int:
    if not 0 <= nano <= MAX_PRICE_NANO:
        raise Invalid(f"{name}: {format_usd(nano)} USD is not between 0 and {format_usd(MAX_PRICE_NANO)}", param=name)
    return nano


class _Book(msgspec.Struct):
    prices: dict[tuple[str, str, str], list[Price]]
    discounts: dict[tuple[str, str], list[Discount]]
    gpus: dict[str, list[GpuPrice]]
    read_at: float


class PriceBook:
    """Every price in memory, read again after a change or half a minute; while SQL is away the last reading serves."""

    def __init__(
        self,
        db: Database,
        *,
        bus: ChangeBus | None = None,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._clock = clock
        self._monotonic = monotonic
        self._book: _Book | None = None
        self._stale = True
        self._lock = asyncio.Lock()
        if bus is not None:
            bus.listen(self._on_change)

    async def rates(
        self, tenant_id: str, model: str, *, service_tier: str = "default", at: datetime | None = None
    ) -> Rates:
        """What `model` costs the tenant at a moment. Raises: UnknownPrice, PolicyUnavailable."""
        book = await self._current()
        moment = at or self._clock()
        for owner in (tenant_id, ""):
            for tier in dict.fromkeys((service_tier, "default")):
                price = _in_force(book.prices.get((model, owner, tier), ()), moment)
                if price is not None:
                    return _rates(price, self._discount(book, tenant_id, model, moment) if owner == "" else 0)
        raise UnknownPrice(f"model {model[:200]!r} has no price in force")

    async def cost_nano_usd(
        self, upstream: str, engine_us: int, *, at: datetime | None = None
    ) -> tuple[int, str | None]:
        """(what the engine time cost us, the price's id), rounded half-even; (0, None) where no price is set."""
        book = await self._current()
        gpu = _in_force(book.gpus.get(upstream, ()), at or self._clock())
        if gpu is None:
            return 0, None
        return half_even(engine_us * gpu.hour_nano, 3_600_000_000), gpu.id

    async def refresh(self) -> None:
        """Read everything now. Raises: whatever SQL raises."""
        started = self._monotonic()
        self._stale = False  # before reading: a change that comes in meanwhile sets it again
        try:
            async with self._db.read() as session:
                prices = await session.scalars(sa.select(Price).order_by(Price.effective_from.desc()))
                discounts = await session.scalars(sa.select(Discount).order_by(Discount.effective_from.desc()))
                gpus = await session.scalars(sa.select(GpuPrice).order_by(GpuPrice.effective_from.desc()))
                book = _Book(defaultdict(list), defaultdict(list), defaultdict(list), started)
                for price in prices:
                    book.prices[price.model, price.tenant_id, price.service_tier].append(price)
                for discount in discounts:
                    book.discounts[discount.tenant_id, discount.model].append(discount)
                for gpu in gpus:
                    book.gpus[gpu.upstream].append(gpu)
        except BaseException:
            self._stale = True
            raise
        self._book = book

    def _discount(self, book: _Book, tenant_id: str, model: str, moment: datetime) -> int:
        for name in (model, ""):
            found = _in_force(book.discounts.get((tenant_id, name), ()), moment)
            if found is not None:
                return found.ppm
        return 0

    async def _current(self) -> _Book:
        book = self._book
        if book is not None and not self._stale and self._monotonic() - book.read_at < READ_AGAIN_S:
            return book
        async with self._lock:
            if self._book is not book and not self._stale and self._book is not None:
                return self._book
            try:
                await asyncio.wait_for(self.refresh(), READ_TIMEOUT_S)
            except (SQLAlchemyError, OSError, TimeoutError) as exc:
                if self._book is None:
                    raise PolicyUnavailable("prices cannot be read at the moment; try again") from exc
                self._book.read_at = self._monotonic()  # ask again in half a minute, not at every request
                self._stale = False
        assert self._book is not None
        return self._book

    def _on_change(self, kind: str, _id: str) -> None:
        if kind in ("prices", "all"):
            self._stale = True


def _rates(price: Price, discount_ppm: int) -> Rates:
    return Rates(
        price_id=price.id,
        model=price.model,
        input=price.input_nano,
        cached_input=price.cached_input_nano,
        output=price.output_nano,
        batch_input=price.batch_input_nano,
        batch_output=price.batch_output_nano,
        discount_ppm=discount_ppm,
    )


def _in_force(rows: Sequence[_Dated], moment: datetime) -> _Dated | None:
    """The one that started last, newest first; one that has ended uncovers nothing older."""
    for row in rows:
        if row.effective_from <= moment:
            ends = getattr(row, "effective_to", None)
            return row if ends is None or ends > moment else None
    return None
