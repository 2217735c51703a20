"""`weir prices`: what a million tokens costs, by class, from a moment on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from billing import prices, tenants
from billing.money import format_usd, parse_percent, parse_usd
from billing.tables import Price
from gateway.cli.books import Books, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows
from gateway.schemas.admin.prices import DiscountView

COLUMNS = ["model", "tenant", "tier", "input", "cached_input", "output", "batch_input", "batch_output", "from", "to"]


def row_of(price: Price) -> dict[str, Any]:
    """A price as commands print it, in USD per million tokens."""
    return {
        "id": price.id,
        "model": price.model,
        "tenant": price.tenant_id or None,
        "tier": price.service_tier,
        "input": format_usd(price.input_nano),
        "cached_input": format_usd(price.cached_input_nano),
        "output": format_usd(price.output_nano),
        "batch_input": format_usd(price.batch_input_nano),
        "batch_output": format_usd(price.batch_output_nano),
        "from": price.effective_from.isoformat(),
        "to": price.effective_to.isoformat() if price.effective_to else None,
    }


def _moment(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise click.BadParameter(f"{text!r} is not an ISO 8601 moment such as 2026-12-01T00:00:00+01:00") from exc
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@click.group("prices")
def command() -> None:
    """Prices in USD per million tokens, versioned by effective dates; a tenant may have its own."""


@command.command("list")
@click.option("--model", help="Only this model's.")
@click.option("--tenant", help="Only this tenant's overrides (slug or id).")
@json_option
@click.pass_obj
def list_(obj: CliContext, model: str | None, tenant: str | None, as_json: bool) -> None:
    """Prices, newest first within a model."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            return [row_of(p) for p in await prices.list_prices(session, books.actor, tenant=tenant, model=model)]

    print_rows(run_with_books(obj, work), COLUMNS, as_json=as_json, title="prices")


@command.command("set")
@click.argument("model")
@click.option("--input", "input_", required=True, metavar="USD", help="Per million prompt tokens.")
@click.option("--output", required=True, metavar="USD", help="Per million output tokens.")
@click.option("--cached-input", metavar="USD", help="Per million prompt tokens read from the prefix cache.")
@click.option("--batch-input", metavar="USD", help="Per million prompt tokens of batches.")
@click.option("--batch-output", metavar="USD", help="Per million output tokens of batches.")
@click.option("--tenant", help="For this tenant only (slug or id).")
@click.option("--tier", default="default", show_default=True, help="For this service tier.")
@click.option("--from", "effective_from", callback=_moment, metavar="TIME", help="In force from. Default: now.")
@json_option
@click.pass_obj
def set_(
    obj: CliContext,
    model: str,
    input_: str,
    output: str,
    cached_input: str | None,
    batch_input: str | None,
    batch_output: str | None,
    tenant: str | None,
    tier: str,
    effective_from: datetime | None,
    as_json: bool,
) -> None:
    """Put a price for MODEL in force; what was in force until then ends there.

    \b
    weir prices set smollm2 --input 0.0375 --output 0.15
    """
    nano = {
        "input_nano": parse_usd(input_, param="input"),
        "output_nano": parse_usd(output, param="output"),
        "cached_input_nano": None if cached_input is None else parse_usd(cached_input, param="cached_input"),
        "batch_input_nano": None if batch_input is None else parse_usd(batch_input, param="batch_input"),
        "batch_output_nano": None if batch_output is None else parse_usd(batch_output, param="batch_output"),
    }

    async def work(books: Books) -> dict[str, Any]:
        async with books.db.begin() as session:
            made = await prices.set_price(
                session,
                books.actor,
                model=model,
                tenant=tenant,
                service_tier=tier,
                effective_from=effective_from,
                **nano,  # type: ignore[arg-type]  # input and output are never None here
            )
            return row_of(made)

    print_rows([run_with_books(obj, work)], COLUMNS, as_json=as_json)


@command.command("discount")
@click.argument("tenant")
@click.argument("percent")
@click.option("--model", default="", help="For this model only.")
@click.option("--from", "effective_from", callback=_moment, metavar="TIME", help="In force from. Default: now.")
@click.pass_obj
def discount(obj: CliContext, tenant: str, percent: str, model: str, effective_from: datetime | None) -> None:
    """Take PERCENT off the list price for TENANT."""
    ppm = parse_percent(percent)

    async def work(books: Books) -> None:
        async with books.db.begin() as session:
            owner = await tenants.get_tenant(session, books.actor, tenant)
            await prices.set_discount(
                session, books.actor, owner.id, ppm=ppm, model=model, effective_from=effective_from
            )

    run_with_books(obj, work)
    click.echo(f"{tenant}: {percent} off {model or 'every model'}")


@command.command("discounts")
@click.option("--tenant", help="Only this tenant's (slug or id).")
@json_option
@click.pass_obj
def discounts(obj: CliContext, tenant: str | None, as_json: bool) -> None:
    """Discounts, newest first within a model."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            found = await prices.list_discounts(session, books.actor, tenant=tenant)
            return [msgspec.to_builtins(DiscountView.of(discount)) for discount in found]

    columns = ["tenant_id", "model", "percent", "effective_from", "effective_to"]
    print_rows(run_with_books(obj, work), columns, as_json=as_json, title="discounts")


@command.command("gpu")
@click.argument("upstream")
@click.argument("hour_usd", metavar="USD_PER_HOUR")
@click.option("--from", "effective_from", callback=_moment, metavar="TIME", help="In force from. Default: now.")
@click.pass_obj
def gpu(obj: CliContext, upstream: str, hour_usd: str, effective_from: datetime | None) -> None:
    """Say what an hour of the hardware behind UPSTREAM costs us: the ledger's cost beside the price.

    \b
    weir prices gpu local 2.10
    """
    hour_nano = parse_usd(hour_usd, param="hour_usd")

    async def work(books: Books) -> None:
        async with books.db.begin() as session:
            await prices.set_gpu_price(
                session, books.actor, upstream=upstream, hour_nano=hour_nano, effective_from=effective_from
            )

    run_with_books(obj, work)
    click.echo(f"{upstream}: {format_usd(hour_nano)} USD an hour")
