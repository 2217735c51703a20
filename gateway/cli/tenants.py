"""`weir tenants`: who pays."""

from __future__ import annotations

from typing import Any

import click

from billing import tenants
from billing.money import format_usd, parse_usd
from billing.principal import SERVICE_TIERS
from billing.tables import Status, Tenant
from gateway.cache_policies import read_cache_policy
from gateway.cli.books import Books, run_with_books
from gateway.cli.cache_fields import cache_option, with_fields
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows
from gateway.cli.paging import fetch_all

COLUMNS = ["id", "slug", "name", "status", "time_zone", "grace_usd", "cache_policy"]


def row_of(tenant: Tenant) -> dict[str, Any]:
    """A tenant as commands print it."""
    return {
        "id": tenant.id,
        "slug": tenant.slug,
        "name": tenant.name,
        "status": str(tenant.status),
        "time_zone": tenant.time_zone,
        "grace_usd": format_usd(tenant.grace_nano_usd),
        "max_service_tier": tenant.max_service_tier,
        "max_priority": tenant.max_priority,
        "cache_policy": tenant.cache_policy,
        "created_at": tenant.created_at.isoformat(),
    }


@click.group("tenants")
def command() -> None:
    """Tenants: who pays. Their time zone cuts the days and months of budgets and reports."""


@command.command("list")
@json_option
@click.pass_obj
def list_(obj: CliContext, as_json: bool) -> None:
    """Every tenant."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            found = await fetch_all(
                lambda after: tenants.list_tenants(session, books.actor, after=after, limit=tenants.MAX_PAGE)
            )
        return [row_of(tenant) for tenant in found]

    print_rows(run_with_books(obj, work), COLUMNS, as_json=as_json, title="tenants")


@command.command("create")
@click.argument("slug")
@click.option("--name", help="Display name. Default: the slug.")
@click.option("--time-zone", default="UTC", show_default=True, help="IANA zone, such as Asia/Kolkata.")
@click.option("--grace-usd", default="0", show_default=True, help="What may be spent unseen while Redis is away.")
@cache_option
@click.option(
    "--max-service-tier",
    type=click.Choice(SERVICE_TIERS),
    default="default",
    show_default=True,
    help="The most that any of its keys may have.",
)
@click.option(
    "--max-priority",
    type=click.IntRange(0, 2),
    default=1,
    show_default=True,
    help="The most urgent engine priority (0) that any of its keys may have.",
)
@json_option
@click.pass_obj
def create(
    obj: CliContext,
    slug: str,
    name: str | None,
    time_zone: str,
    grace_usd: str,
    cache_fields: tuple[str, ...],
    max_service_tier: str,
    max_priority: int,
    as_json: bool,
) -> None:
    """Make a tenant. SLUG is its short name: a-z, 0-9, hyphens."""
    grace = parse_usd(grace_usd, param="grace_usd")
    policy = read_cache_policy(with_fields({}, cache_fields), whose=slug).as_dict()

    async def work(books: Books) -> dict[str, Any]:
        async with books.db.begin() as session:
            made = await tenants.create_tenant(
                session,
                books.actor,
                slug=slug,
                name=name,
                time_zone=time_zone,
                grace_nano_usd=grace,
                cache_policy=policy,
                max_service_tier=max_service_tier,
                max_priority=max_priority,
            )
            return row_of(made)

    print_rows([run_with_books(obj, work)], COLUMNS, as_json=as_json)


@command.command("update")
@click.argument("tenant")
@click.option("--name")
@click.option("--time-zone")
@click.option("--grace-usd")
@cache_option
@click.option("--max-service-tier", type=click.Choice(SERVICE_TIERS), help="In force over what its keys say.")
@click.option("--max-priority", type=click.IntRange(0, 2), help="In force over what its keys say.")
@click.option("--suspend", "status", flag_value="suspended", help="Its keys answer 403 until lifted.")
@click.option("--activate", "status", flag_value="active", help="Lift a suspension.")
@json_option
@click.pass_obj
def update(
    obj: CliContext,
    tenant: str,
    name: str | None,
    time_zone: str | None,
    grace_usd: str | None,
    cache_fields: tuple[str, ...],
    max_service_tier: str | None,
    max_priority: int | None,
    status: str | None,
    as_json: bool,
) -> None:
    """Change TENANT (slug or id); what is not given stays."""
    grace = parse_usd(grace_usd, param="grace_usd") if grace_usd is not None else None

    async def work(books: Books) -> dict[str, Any]:
        async with books.db.begin() as session:
            policy = None
            if cache_fields:
                stored = (await tenants.get_tenant(session, books.actor, tenant)).cache_policy
                policy = read_cache_policy(with_fields(stored, cache_fields), whose=tenant).as_dict()
            changed = await tenants.update_tenant(
                session,
                books.actor,
                tenant,
                name=name,
                time_zone=time_zone,
                grace_nano_usd=grace,
                status=Status(status) if status else None,
                cache_policy=policy,
                max_service_tier=max_service_tier,
                max_priority=max_priority,
            )
            return row_of(changed)

    print_rows([run_with_books(obj, work)], COLUMNS, as_json=as_json)
