"""Prices in USD per million tokens, discounts in percent, the price of a GPU hour."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from billing.money import format_usd
from billing.tables import Discount, GpuPrice, Price
from gateway.schemas.admin.common import Moment, Name, Ref, Usd

Percent = Annotated[str, Meta(min_length=1, max_length=12)]


class PriceCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A class left out costs what its plain one costs. `tenant` (id or slug) makes it an override."""

    model: Name
    input: Usd
    output: Usd
    cached_input: Usd | None = None
    batch_input: Usd | None = None
    batch_output: Usd | None = None
    tenant: Ref | None = None
    service_tier: Literal["flex", "default", "priority"] = "default"
    effective_from: Moment | None = None
    effective_to: Moment | None = None


class PriceEnd(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """From when the price is no longer in force; now where left out."""

    at: Moment | None = None


class PriceQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tenant: Ref | None = None
    model: str | None = None


class PriceView(msgspec.Struct, kw_only=True):
    id: str
    model: str
    tenant_id: str | None
    service_tier: str
    input: str
    cached_input: str
    output: str
    batch_input: str
    batch_output: str
    effective_from: datetime
    effective_to: datetime | None
    created_at: datetime
    created_by: str

    @classmethod
    def of(cls, price: Price) -> PriceView:
        """From its row."""
        return cls(
            id=price.id,
            model=price.model,
            tenant_id=price.tenant_id or None,
            service_tier=price.service_tier,
            input=format_usd(price.input_nano),
            cached_input=format_usd(price.cached_input_nano),
            output=format_usd(price.output_nano),
            batch_input=format_usd(price.batch_input_nano),
            batch_output=format_usd(price.batch_output_nano),
            effective_from=price.effective_from,
            effective_to=price.effective_to,
            created_at=price.created_at,
            created_by=price.created_by,
        )


class DiscountCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`percent` off the list price ("15", "12.5"), for one model or, with `model` empty, for all."""

    tenant: Ref
    percent: Percent
    model: Annotated[str, Meta(max_length=200)] = ""
    effective_from: Moment | None = None
    effective_to: Moment | None = None


class DiscountQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tenant: Ref | None = None


class DiscountView(msgspec.Struct, kw_only=True):
    id: str
    tenant_id: str
    model: str | None
    percent: str
    effective_from: datetime
    effective_to: datetime | None

    @classmethod
    def of(cls, discount: Discount) -> DiscountView:
        """From its row."""
        return cls(
            id=discount.id,
            tenant_id=discount.tenant_id,
            model=discount.model or None,
            percent=percent_text(discount.ppm),
            effective_from=discount.effective_from,
            effective_to=discount.effective_to,
        )


class GpuPriceCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an hour of the hardware behind `upstream` costs us."""

    upstream: Annotated[str, Meta(min_length=1, max_length=64)]
    hour_usd: Usd
    effective_from: Moment | None = None


class GpuPriceView(msgspec.Struct, kw_only=True):
    id: str
    upstream: str
    hour_usd: str
    effective_from: datetime

    @classmethod
    def of(cls, price: GpuPrice) -> GpuPriceView:
        """From its row."""
        return cls(
            id=price.id,
            upstream=price.upstream,
            hour_usd=format_usd(price.hour_nano),
            effective_from=price.effective_from,
        )


def percent_text(ppm: int) -> str:
    """Parts per million as a percentage with every digit: 125000 is `12.5`."""
    whole, rest = divmod(ppm, 10_000)
    return f"{whole}.{rest:04d}".rstrip("0") if rest else str(whole)
