"""`weir limits`: what a key, a project or a tenant may use and spend."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from billing import tenants
from billing.limits import rules
from billing.limits.status import limit_status
from billing.money import format_usd, parse_usd
from billing.principal import Actor
from billing.quotas.quota import Unit
from billing.quotas.registry import QUOTAS, quota_named
from billing.service import Billing
from billing.tables import LimitRule
from gateway.cli.books import Books, run_with_billing, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows
from gateway.schemas.usage import Left

COLUMNS = ["scope", "scope_id", "model", "quota", "hard", "soft", "unit"]
_QUOTA = click.Choice(list(QUOTAS))


def row_of(rule: LimitRule) -> dict[str, Any]:
    """A limit as commands print it; money in USD."""
    unit = QUOTAS[rule.quota].unit

    def shown(value: int | None) -> int | str | None:
        return format_usd(value) if value is not None and unit is Unit.NANO_USD else value

    return {
        "scope": rule.scope_kind,
        "scope_id": rule.scope_id,
        "tenant_id": rule.tenant_id,
        "model": rule.model or None,
        "quota": rule.quota,
        "hard": shown(rule.hard),
        "soft": shown(rule.soft),
        "unit": "usd" if unit is Unit.NANO_USD else str(unit),
    }


def parse_amount(quota: str, text: str | None, param: str) -> int | None:
    """A limit's value from text: USD for budgets, a whole number for the rest. Raises: Invalid, BadParameter."""
    if text is None:
        return None
    if quota_named(quota).unit is Unit.NANO_USD:
        return parse_usd(text, param=param)
    if not text.isascii() or not text.isdigit():
        raise click.BadParameter(f"{text!r} is not a whole number", param_hint=f"--{param}")
    return int(text)


def scope_options(function: Any) -> Any:
    """--tenant, --project, --key: exactly one scope; a project's slug needs its tenant beside it."""
    function = click.option("--key", help="The scope is this key (id).")(function)
    function = click.option("--project", help="The scope is this project (id, or slug with --tenant).")(function)
    return click.option("--tenant", help="The scope is this tenant (slug or id).")(function)


async def resolve_scope(books: Books, tenant: str | None, project: str | None, key: str | None) -> tuple[str, str]:
    """(scope kind, scope id). Raises: UsageError without a scope; NotFound."""
    if key:
        return "key", key
    async with books.db.read() as session:
        owner = (await tenants.get_tenant(session, books.actor, tenant)).id if tenant else None
        if project:
            return "project", (await tenants.get_project(session, books.actor, project, tenant=owner)).id
    if owner:
        return "tenant", owner
    raise click.UsageError("give --tenant, --project or --key")


@click.group("limits")
def command() -> None:
    """Limits of a tenant, a project or a key, for all models or one.

    \b
    rpm, rpd         requests a minute, a day
    tpm, tpd         tokens a minute, a day (prompt and the output asked for; the unused is given back)
    concurrency      requests at once
    max_tokens       tokens of one request
    budget_day, budget_week, budget_month   USD, in the tenant's time zone

    A hard limit refuses, a soft one alerts.
    """


@command.command("list")
@click.option("--tenant", help="Only this tenant's (slug or id).")
@json_option
@click.pass_obj
def list_(obj: CliContext, tenant: str | None, as_json: bool) -> None:
    """Limits of all tenants, or of one."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            owner = (await tenants.get_tenant(session, books.actor, tenant)).id if tenant else None
            return [row_of(rule) for rule in await rules.list_limits(session, books.actor, tenant=owner)]

    print_rows(run_with_books(obj, work), COLUMNS, as_json=as_json, title="limits")


@command.command("status")
@click.argument("tenant")
@json_option
@click.pass_obj
def status(obj: CliContext, tenant: str, as_json: bool) -> None:
    """What is used and left of every limit of TENANT, its projects and keys, and when it resets."""

    async def work(billing: Billing) -> list[dict[str, Any]]:
        async with billing.db.read() as session:
            found = await limit_status(billing.redis, session, Actor.operator(), tenant=tenant)
        return [msgspec.to_builtins(Left.of(each)) for each in found]

    columns = ["scope", "scope_id", "model", "quota", "hard", "used", "held", "left", "resets_at"]
    print_rows(run_with_billing(obj, work), columns, as_json=as_json, title="limits")


@command.command("set")
@click.argument("quota", type=_QUOTA)
@click.option("--hard", help="Refuse beyond this: a whole number, or USD for budgets.")
@click.option("--soft", help="Alert beyond this.")
@click.option("--model", default="", help="For this model only.")
@scope_options
@json_option
@click.pass_obj
def set_(
    obj: CliContext,
    quota: str,
    hard: str | None,
    soft: str | None,
    model: str,
    tenant: str | None,
    project: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Set QUOTA of one scope; running gateways follow within a second.

    \b
    weir limits set rpm --tenant acme --hard 600
    weir limits set budget_month --tenant acme --project chat --hard 250 --soft 200
    """
    hard_value, soft_value = parse_amount(quota, hard, "hard"), parse_amount(quota, soft, "soft")

    async def work(books: Books) -> dict[str, Any]:
        kind, scope_id = await resolve_scope(books, tenant, project, key)
        async with books.db.begin() as session:
            rule = await rules.set_limit(
                session,
                books.actor,
                scope_kind=kind,
                scope_id=scope_id,
                quota=quota,
                hard=hard_value,
                soft=soft_value,
                model=model,
            )
            return row_of(rule)

    print_rows([run_with_books(obj, work)], COLUMNS, as_json=as_json)


@command.command("remove")
@click.argument("quota", type=_QUOTA)
@click.option("--model", default="")
@scope_options
@click.pass_obj
def remove(obj: CliContext, quota: str, model: str, tenant: str | None, project: str | None, key: str | None) -> None:
    """Lift QUOTA from one scope."""

    async def work(books: Books) -> None:
        kind, scope_id = await resolve_scope(books, tenant, project, key)
        async with books.db.begin() as session:
            await rules.remove_limit(session, books.actor, scope_kind=kind, scope_id=scope_id, quota=quota, model=model)

    run_with_books(obj, work)
    click.echo(f"{quota} lifted")
