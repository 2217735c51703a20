"""Every price in memory: which one is in force for a tenant, model and tier at a moment."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeGuard, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from billing.bus import ChangeBus
from billing.clock import Clock, utc_now
from billing.db import Database
from billing.errors import PolicyUnavailable, UnknownPrice
from billing.money import half_even
from billing.rates import Rates
from billing.tables import Discount, GpuPrice, Price

log = logging.getLogger(__name__)
READ_AGAIN_S = 30.0
READ_TIMEOUT_S = 5.0
RETRY_S = 1.0
_Dated = TypeVar("_Dated", Price, Discount, GpuPrice)


class _Book(msgspec.Struct):
    prices: dict[tuple[str, str, str], list[Price]]
    discounts: dict[tuple[str, str], list[Discount]]
    gpus: dict[str, list[GpuPrice]]
    read_at: float
    generation: int


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
        self._generation = 0  # grows with every change
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
        # As they are before reading: what changes meanwhile is read again, by everybody who asks from then on.
        started, generation = self._monotonic(), self._generation
        async with self._db.read() as session:
            prices = await session.scalars(sa.select(Price).order_by(Price.effective_from.desc()))
            discounts = await session.scalars(sa.select(Discount).order_by(Discount.effective_from.desc()))
            gpus = await session.scalars(sa.select(GpuPrice).order_by(GpuPrice.effective_from.desc()))
            book = _Book(defaultdict(list), defaultdict(list), defaultdict(list), started, generation)
            for price in prices:
                book.prices[price.model, price.tenant_id, price.service_tier].append(price)
            for discount in discounts:
                book.discounts[discount.tenant_id, discount.model].append(discount)
            for gpu in gpus:
                book.gpus[gpu.upstream].append(gpu)
        self._book = book

    def _discount(self, book: _Book, tenant_id: str, model: str, moment: datetime) -> int:
        for name in (model, ""):
            found = _in_force(book.discounts.get((tenant_id, name), ()), moment)
            if found is not None:
                return found.ppm
        return 0

    async def _current(self) -> _Book:
        if self._is_current(self._book):
            return self._book
        async with self._lock:
            if self._is_current(self._book):
                return self._book
            generation = self._generation
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await self.refresh()
            except (SQLAlchemyError, OSError, TimeoutError) as exc:
                if self._book is None:
                    raise PolicyUnavailable("prices cannot be read at the moment; try again") from exc
                log.warning("prices could not be read again (%s); the last ones hold meanwhile", type(exc).__name__)
                # Not at every request, but soon: what changed is in force already.
                self._book.read_at = self._monotonic() - READ_AGAIN_S + RETRY_S
                self._book.generation = generation
        assert self._book is not None
        return self._book

    def _is_current(self, book: _Book | None) -> TypeGuard[_Book]:
        if book is None or book.generation != self._generation:
            return False
        return self._monotonic() - book.read_at < READ_AGAIN_S

    def _on_change(self, kind: str, _id: str) -> None:
        if kind in ("prices", "all"):
            self._generation += 1


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
