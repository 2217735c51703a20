"""`weir audit`: who changed what."""

from __future__ import annotations

from typing import Any

import click

from billing import audit, tenants
from billing.tables import AuditEvent
from gateway.cli.books import Books, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows
from gateway.periods import parse_moment

COLUMNS = ["effective_at", "action", "resource_id", "actor", "tenant_id", "detail"]


def row_of(event: AuditEvent) -> dict[str, Any]:
    """An event as commands print it."""
    return {
        "id": event.id,
        "effective_at": event.effective_at.isoformat(),
        "action": event.action,
        "resource_id": event.resource_id,
        "actor": f"{event.actor_kind}:{event.actor_id} ({event.actor_role})",
        "tenant_id": event.tenant_id,
        "project_id": event.project_id,
        "request_id": event.request_id,
        "ip": event.ip,
        "detail": event.detail,
    }


@click.command("audit")
@click.option("--tenant", help="Only this tenant's (slug or id).")
@click.option("--action", "actions", multiple=True, help="Only this action, such as api_key.created; repeatable.")
@click.option("--resource", "resources", multiple=True, help="Only about this id; repeatable.")
@click.option("--from", "start", metavar="TIME", help="From this day or moment on (UTC).")
@click.option("--to", "end", metavar="TIME", help="Until before this day or moment (UTC).")
@click.option("--limit", type=click.IntRange(min=1, max=audit.MAX_PAGE), default=100, show_default=True)
@json_option
@click.pass_obj
def command(
    obj: CliContext,
    tenant: str | None,
    actions: tuple[str, ...],
    resources: tuple[str, ...],
    start: str | None,
    end: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Administrative acts, newest first."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            owner = (await tenants.get_tenant(session, books.actor, tenant)).id if tenant else None
            found = await audit.list_events(
                session,
                books.actor,
                tenant_id=owner,
                actions=actions,
                resource_ids=resources,
                since=parse_moment(start, "UTC", param="from") if start else None,
                until=parse_moment(end, "UTC", param="to") if end else None,
                limit=limit,
            )
            return [row_of(event) for event in found]

    print_rows(run_with_books(obj, work), COLUMNS, as_json=as_json, title="events")
