"""`weir report`: every report of the registry, by any of its dimensions."""

from __future__ import annotations

from typing import Any

import click

from billing import tenants
from billing.reports.registry import REPORTS
from billing.reports.report import ReportQuery, ReportTable
from gateway.cli.books import Books, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows
from gateway.periods import parse_moment
from gateway.presenters.reports import shown_row, shown_rows, table_columns

NAMES = {name.replace("_", "-"): name for name in REPORTS}
_EPILOG = "Dimensions: " + "; ".join(f"{word}: {', '.join(REPORTS[name].dimensions)}" for word, name in NAMES.items())


def parse_filters(words: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """From `model=smollm2` and the like, repeated for alternatives. Raises: BadParameter."""
    filters: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, found, value = word.partition("=")
        if not found or not name:
            raise click.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--filter")
        filters[name] = (*filters.get(name, ()), value)
    return filters


@click.command("report", epilog=_EPILOG)
@click.argument("name", type=click.Choice(list(NAMES)))
@click.option("--by", metavar="DIMENSIONS", help="Group by these, separated by commas.")
@click.option("--from", "start", metavar="TIME", help="From this day or moment on.")
@click.option("--to", "end", metavar="TIME", help="Until before this day or moment.")
@click.option("--time-zone", help="Where days are cut. Default: the tenant's, else UTC.")
@click.option("--tenant", help="Only this tenant's (slug or id).")
@click.option("--filter", "filters", multiple=True, metavar="NAME=VALUE", help="Only rows of this; repeat for more.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="At most this many rows.")
@json_option
@click.pass_obj
def command(
    obj: CliContext,
    name: str,
    by: str | None,
    start: str | None,
    end: str | None,
    time_zone: str | None,
    tenant: str | None,
    filters: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """Print report NAME.

    \b
    weir report spend --by tenant,model
    weir report spend --by day,project --tenant acme --from 2026-12-01 --to 2027-01-01
    weir report cache-savings --by model --json
    """
    wanted = parse_filters(filters)

    async def work(books: Books) -> tuple[ReportTable, list[dict[str, Any]]]:
        async with books.db.read() as session:
            owner = await tenants.get_tenant(session, books.actor, tenant) if tenant else None
            zone = time_zone or (owner.time_zone if owner else "UTC")
            query = ReportQuery(
                by=tuple(part.strip() for part in by.split(",") if part.strip()) if by else (),
                start=parse_moment(start, zone, param="from") if start else None,
                end=parse_moment(end, zone, param="to") if end else None,
                tenant_id=owner.id if owner else None,
                filters=wanted,
                time_zone=zone,
                limit=limit,
            )
            table = await REPORTS[NAMES[name]].run(session, books.actor, query)
            return table, await shown_rows(session, books.actor, table)

    table, rows = run_with_books(obj, work)
    columns = table_columns(table)
    if not as_json and table.total and len(rows) > 1:
        first = columns[0]
        rows = [*rows, {**shown_row(table.total, {}), first: "total"}]
    print_rows(rows, columns, as_json=as_json, title=name)
