"""`weir ledger`: the rows of the books."""

from __future__ import annotations

from typing import Any

import click

from billing import tenants
from billing.adjustments import adjust
from billing.ids import new_id
from billing.principal import Actor
from billing.reports.entries import entries_of
from billing.reports.report import ReportQuery
from billing.reports.requests import MAX_PAGE, REPORT
from billing.service import Billing
from billing.tables import EntryKind
from gateway.cli.books import Books, run_with_billing, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_json, print_rows
from gateway.cli.report import parse_filters
from gateway.periods import parse_moment
from gateway.presenters.reports import shown_entries, shown_rows
from gateway.schemas.admin.books import signed_amount

COLUMNS = [
    *("accepted_at", "request_id", "kind", "status", "tenant", "model"),
    *("prompt_tokens", "completion_tokens", "amount_usd", "cache_outcome"),
]


@click.group("ledger")
def command() -> None:
    """The ledger: append-only, one row for what each request used. Corrections are rows of their own."""


@command.command("list")
@click.option("--tenant", help="Only this tenant's (slug or id).")
@click.option("--from", "start", metavar="TIME", help="From this day or moment on.")
@click.option("--to", "end", metavar="TIME", help="Until before this day or moment.")
@click.option(
    "--filter", "filters", multiple=True, metavar="NAME=VALUE", help="Such as status=interrupted; repeatable."
)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most this many rows.")
@json_option
@click.pass_obj
def list_(
    obj: CliContext,
    tenant: str | None,
    start: str | None,
    end: str | None,
    filters: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """Rows, newest first.

    Filters: project, key, model, endpoint, upstream, service_tier, cache, status, request, conversation, end_user,
    error, kind.
    """
    wanted = parse_filters(filters)

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            owner = await tenants.get_tenant(session, books.actor, tenant) if tenant else None
            zone = owner.time_zone if owner else "UTC"
            rows: list[dict[str, Any]] = []
            after: str | None = None
            while len(rows) < limit:
                query = ReportQuery(
                    start=parse_moment(start, zone, param="from") if start else None,
                    end=parse_moment(end, zone, param="to") if end else None,
                    tenant_id=owner.id if owner else None,
                    filters=wanted,
                    limit=min(MAX_PAGE, limit - len(rows)),
                    after=after,
                )
                table = await REPORT.run(session, books.actor, query)
                rows += await shown_rows(session, books.actor, table)
                after = table.next_after
                if after is None:
                    break
            return rows

    print_rows(run_with_books(obj, work), COLUMNS, as_json=as_json, title="rows")


@command.command("show")
@click.argument("request_id")
@click.pass_obj
def show(obj: CliContext, request_id: str) -> None:
    """Every row of REQUEST_ID with every column, as JSON."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            return await shown_entries(session, books.actor, await entries_of(session, books.actor, request_id))

    print_json(run_with_books(obj, work))


@command.command("adjust")
@click.argument("tenant")
@click.option("--credit", metavar="USD", help="Give this much back.")
@click.option("--debit", metavar="USD", help="Charge this much.")
@click.option("--note", required=True, help="Why; it stands in the row.")
@click.option("--id", "id_", help="Makes it idempotent: the same value on every retry books one row.")
@click.option("--project", help="Also to this project (slug or id).")
@json_option
@click.pass_obj
def adjust_(
    obj: CliContext,
    tenant: str,
    credit: str | None,
    debit: str | None,
    note: str,
    id_: str | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Book a credit or a debit to TENANT as a row of its own; budgets follow at once.

    \b
    weir ledger adjust acme --credit 12.50 --note "outage of 3 December" --id outage-2026-12-03
    """
    amount = signed_amount(credit, debit)

    id = id_ or new_id("adj")
    actor = Actor.operator()

    async def work(billing: Billing) -> list[dict[str, Any]]:
        await adjust(
            billing.db,
            billing.redis,
            actor,
            id=id,
            tenant=tenant,
            amount_nano=amount,
            note=note,
            project=project,
        )
        async with billing.db.read() as session:
            rows = await shown_entries(session, actor, await entries_of(session, actor, id))
        return [row for row in rows if row["kind"] == EntryKind.ADJUSTMENT]

    print_rows(run_with_billing(obj, work), ["request_id", "tenant", "amount_usd", "note"], as_json=as_json)
