"""`weir alerts`: webhooks. The signing secret is printed once, when one is made."""

from __future__ import annotations

from typing import Any

import click

from billing import alerts
from billing.tables import AlertEndpoint
from gateway.cli.books import Books, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows
from gateway.webhooks import check_receiver

COLUMNS = ["id", "tenant_id", "url", "kinds", "created_at"]


def row_of(endpoint: AlertEndpoint) -> dict[str, Any]:
    """An endpoint as commands print it; never its secret."""
    return {
        "id": endpoint.id,
        "tenant_id": endpoint.tenant_id or None,
        "url": endpoint.url,
        "kinds": endpoint.kinds,
        "created_at": endpoint.created_at.isoformat(),
        "disabled_at": endpoint.disabled_at.isoformat() if endpoint.disabled_at else None,
    }


@click.group("alerts")
def command() -> None:
    """Signed webhooks for soft and hard limits, budget forecasts and drift of the ledger.

    A delivery that fails is tried again, twelve times in all, ever more slowly.
    """


@command.command("list")
@json_option
@click.pass_obj
def list_(obj: CliContext, as_json: bool) -> None:
    """Webhooks."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            return [row_of(endpoint) for endpoint in await alerts.list_endpoints(session, books.actor)]

    print_rows(run_with_books(obj, work), COLUMNS, as_json=as_json, title="webhooks")


@command.command("create")
@click.argument("url")
@click.option("--tenant", help="Only this tenant's alerts (slug or id). Default: all.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice([str(k) for k in alerts.AlertKind]))
@json_option
@click.pass_obj
def create(obj: CliContext, url: str, tenant: str | None, kinds: tuple[str, ...], as_json: bool) -> None:
    """Post alerts to URL; prints the secret that signs them, once."""

    async def work(books: Books) -> dict[str, Any]:
        await check_receiver(url, allow_private=obj.settings.webhook_private_hosts)
        async with books.db.begin() as session:
            made = await alerts.create_endpoint(session, books.actor, books.secret, url=url, tenant=tenant, kinds=kinds)
            return {**row_of(made.endpoint), "secret": made.secret}

    row = run_with_books(obj, work)
    print_rows([row], ["id", "url", "secret"], as_json=as_json)
    if not as_json:
        click.echo("Keep the secret now: it is not shown again.")


@command.command("remove")
@click.argument("endpoint_id")
@click.pass_obj
def remove(obj: CliContext, endpoint_id: str) -> None:
    """Remove a webhook; what it has not been told yet goes with it."""

    async def work(books: Books) -> None:
        async with books.db.begin() as session:
            await alerts.remove_endpoint(session, books.actor, endpoint_id)

    run_with_books(obj, work)
    click.echo(f"{endpoint_id} removed")
