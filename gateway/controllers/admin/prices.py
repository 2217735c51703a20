"""/admin/v1/prices, /admin/v1/discounts, /admin/v1/gpu-prices: what a token costs the tenant, and what it costs us."""

from __future__ import annotations

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from billing import prices
from billing.money import parse_percent, parse_usd
from gateway.admin_auth import operates, reads_books
from gateway.controllers.admin.base import AdminController, By, Db
from gateway.decoding import BodyDTO
from gateway.queries import takes_query
from gateway.schemas.admin.prices import (
    DiscountCreate,
    DiscountQuery,
    DiscountView,
    GpuPriceCreate,
    GpuPriceView,
    PriceCreate,
    PriceEnd,
    PriceQuery,
    PriceView,
)


class PriceController(AdminController):
    """Versioned prices: a new one ends what was in force; none is ever edited."""

    path = "/admin/v1/prices"
    tags = ("Admin: prices",)

    @get(guards=[reads_books], operation_id="ListPrices", summary="List prices", **takes_query(PriceQuery))
    async def list_prices(self, actor: By, db: Db, params: NamedDependency[PriceQuery]) -> list[PriceView]:
        """List prices and one's own overrides, newest first within a model."""
        async with db.read() as session:
            found = await prices.list_prices(session, actor, tenant=params.tenant, model=params.model)
        return [PriceView.of(price) for price in found]

    @post(
        guards=[operates],
        operation_id="CreatePrice",
        summary="Put a price in force",
        dto=BodyDTO[PriceCreate],
        return_dto=None,
    )
    async def create_price(self, actor: By, data: JSONBody[PriceCreate], db: Db) -> PriceView:
        """Raises: InvalidRequest (400), Conflict (409) when another starts at that very moment."""
        async with db.begin() as session:
            made = await prices.set_price(
                session,
                actor,
                model=data.model,
                input_nano=parse_usd(data.input, param="input"),
                output_nano=parse_usd(data.output, param="output"),
                cached_input_nano=_usd(data.cached_input, "cached_input"),
                batch_input_nano=_usd(data.batch_input, "batch_input"),
                batch_output_nano=_usd(data.batch_output, "batch_output"),
                tenant=data.tenant,
                service_tier=data.service_tier,
                effective_from=data.effective_from,
                effective_to=data.effective_to,
            )
            return PriceView.of(made)

    @post(
        "/{price_id:str}/end",
        guards=[operates],
        operation_id="EndPrice",
        summary="Let a price run out",
        dto=BodyDTO[PriceEnd],
        return_dto=None,
        status_code=200,
    )
    async def end_price(self, actor: By, price_id: FromPath[str], data: JSONBody[PriceEnd], db: Db) -> PriceView:
        """The model is refused from then on unless another price covers it: unknown is never free."""
        async with db.begin() as session:
            return PriceView.of(await prices.end_price(session, actor, price_id, at=data.at))


class DiscountController(AdminController):
    """Percentages off the list price."""

    path = "/admin/v1/discounts"
    tags = ("Admin: prices",)

    @get(guards=[reads_books], operation_id="ListDiscounts", summary="List discounts", **takes_query(DiscountQuery))
    async def list_discounts(self, actor: By, db: Db, params: NamedDependency[DiscountQuery]) -> list[DiscountView]:
        """One's own, newest first within a model. Raises: NotFound (404) for a foreign tenant."""
        async with db.read() as session:
            found = await prices.list_discounts(session, actor, tenant=params.tenant)
        return [DiscountView.of(discount) for discount in found]

    @post(
        guards=[operates],
        operation_id="CreateDiscount",
        summary="Give a tenant a discount",
        dto=BodyDTO[DiscountCreate],
        return_dto=None,
    )
    async def create_discount(self, actor: By, data: JSONBody[DiscountCreate], db: Db) -> DiscountView:
        """Raises: InvalidRequest (400), NotFound (404), Conflict (409)."""
        async with db.begin() as session:
            made = await prices.set_discount(
                session,
                actor,
                data.tenant,
                ppm=parse_percent(data.percent, param="percent"),
                model=data.model,
                effective_from=data.effective_from,
                effective_to=data.effective_to,
            )
            return DiscountView.of(made)


class GpuPriceController(AdminController):
    """What an hour of the hardware behind an upstream costs us: the cost beside the price."""

    path = "/admin/v1/gpu-prices"
    tags = ("Admin: prices",)

    @get(guards=[operates], operation_id="ListGpuPrices", summary="List what GPU hours cost")
    async def list_gpu_prices(self, actor: By, db: Db) -> list[GpuPriceView]:
        """Newest first within an upstream."""
        async with db.read() as session:
            return [GpuPriceView.of(price) for price in await prices.list_gpu_prices(session, actor)]

    @post(
        guards=[operates],
        operation_id="CreateGpuPrice",
        summary="Say what a GPU hour costs",
        dto=BodyDTO[GpuPriceCreate],
        return_dto=None,
    )
    async def create_gpu_price(self, actor: By, data: JSONBody[GpuPriceCreate], db: Db) -> GpuPriceView:
        """Raises: InvalidRequest (400), Conflict (409)."""
        async with db.begin() as session:
            made = await prices.set_gpu_price(
                session,
                actor,
                upstream=data.upstream,
                hour_nano=parse_usd(data.hour_usd, param="hour_usd"),
                effective_from=data.effective_from,
            )
            return GpuPriceView.of(made)


def _usd(text: str | None, param: str) -> int | None:
    return None if text is None else parse_usd(text, param=param)
