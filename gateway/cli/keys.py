"""`weir keys`: API keys. The plaintext is printed once, when a key is made or rotated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from billing import keys, tenants
from billing.principal import SERVICE_TIERS, Role, Scope
from billing.tables import ApiKey
from gateway.cli.books import Books, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows
from gateway.cli.paging import fetch_all

COLUMNS = ["id", "name", "redacted", "status", "role", "scopes", "models", "expires_at", "last_used_at"]


def row_of(key: ApiKey) -> dict[str, Any]:
    """A key as commands print it; never its secret."""
    return {
        "id": key.id,
        "tenant_id": key.tenant_id,
        "project_id": key.project_id,
        "name": key.name,
        "redacted": key.redacted,
        "status": str(keys.status_of(key, datetime.now(UTC))),
        "role": key.role,
        "scopes": key.scopes,
        "models": key.allowed_models,
        "max_service_tier": key.max_service_tier,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "last_used_at": key.last_used_at.isoformat() if key.last_used_at else None,
    }


def _print_new(row: dict[str, Any], plaintext: str, *, as_json: bool) -> None:
    print_rows([{**row, "key": plaintext}], ["id", "name", "key"], as_json=as_json)
    if not as_json:
        click.echo("Keep it now: it is not shown again.")


@click.group("keys")
def command() -> None:
    """API keys of a project: make, list, rotate, revoke."""


@command.command("list")
@click.option("--tenant", help="Only this tenant's (slug or id).")
@click.option("--revoked", is_flag=True, help="Revoked ones too.")
@json_option
@click.pass_obj
def list_(obj: CliContext, tenant: str | None, revoked: bool, as_json: bool) -> None:
    """Keys, redacted."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            owner = (await tenants.get_tenant(session, books.actor, tenant)).id if tenant else None
            found = await fetch_all(
                lambda after: keys.list_keys(
                    session,
                    books.actor,
                    tenant_id=owner,
                    include_revoked=revoked,
                    after=after,
                    limit=tenants.MAX_PAGE,
                )
            )
        return [row_of(key) for key in found]

    print_rows(run_with_books(obj, work), COLUMNS, as_json=as_json, title="keys")


@command.command("create")
@click.argument("tenant")
@click.argument("project")
@click.option("--name", default="key", show_default=True, help="What the key is for.")
@click.option("--scope", "scopes", multiple=True, type=click.Choice([str(s) for s in Scope]), help="Repeat for more.")
@click.option("--role", type=click.Choice([str(r) for r in Role]), default="member", show_default=True)
@click.option("--model", "models", multiple=True, help="Allowed model; repeat for more. Default: all.")
@click.option("--max-service-tier", type=click.Choice(SERVICE_TIERS), default="default", show_default=True)
@click.option("--expires-in-days", type=click.IntRange(min=1))
@json_option
@click.pass_obj
def create(
    obj: CliContext,
    tenant: str,
    project: str,
    name: str,
    scopes: tuple[str, ...],
    role: str,
    models: tuple[str, ...],
    max_service_tier: str,
    expires_in_days: int | None,
    as_json: bool,
) -> None:
    """Make a key for PROJECT of TENANT and print it, once."""
    expires_at = datetime.now(UTC) + timedelta(days=expires_in_days) if expires_in_days else None

    async def work(books: Books) -> tuple[dict[str, Any], str]:
        async with books.db.begin() as session:
            owner = await tenants.get_tenant(session, books.actor, tenant)
            made = await keys.create_key(
                session,
                books.actor,
                books.secret,
                project,
                tenant=owner.id,
                name=name,
                scopes=scopes or (Scope.INFERENCE,),
                role=Role(role),
                allowed_models=models or None,
                max_service_tier=max_service_tier,
                expires_at=expires_at,
            )
            return row_of(made.key), made.plaintext

    row, plaintext = run_with_books(obj, work)
    _print_new(row, plaintext, as_json=as_json)


@command.command("rotate")
@click.argument("key_id")
@click.option("--grace-hours", type=click.FloatRange(min=0), default=24.0, show_default=True)
@json_option
@click.pass_obj
def rotate(obj: CliContext, key_id: str, grace_hours: float, as_json: bool) -> None:
    """Give KEY_ID a new secret; the old one works until the grace has passed."""

    async def work(books: Books) -> tuple[dict[str, Any], str]:
        async with books.db.begin() as session:
            made = await keys.rotate_key(session, books.actor, books.secret, key_id, grace=timedelta(hours=grace_hours))
            return row_of(made.key), made.plaintext

    row, plaintext = run_with_books(obj, work)
    _print_new(row, plaintext, as_json=as_json)


@command.command("revoke")
@click.argument("key_id")
@json_option
@click.pass_obj
def revoke(obj: CliContext, key_id: str, as_json: bool) -> None:
    """End KEY_ID on every gateway within a second."""

    async def work(books: Books) -> dict[str, Any]:
        async with books.db.begin() as session:
            return row_of(await keys.revoke_key(session, books.actor, key_id))

    print_rows([run_with_books(obj, work)], COLUMNS, as_json=as_json)
