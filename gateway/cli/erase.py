"""`weir erase`: delete what a tenant, or one end user of its, left beside the books."""

from __future__ import annotations

import click
import msgspec

from billing import audit
from billing.tables import Tenant
from cache.invalidation import Invalidator
from gateway.cli.books import Books
from gateway.cli.cache import with_cache
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_json
from gateway.erasure import Erased, erase


@click.command("erase")
@click.argument("tenant")
@click.option("--end-user", help="Only what this end user (safety_identifier or user) left.")
@click.confirmation_option(prompt="This cannot be undone. Erase?")
@json_option
@click.pass_obj
def command(obj: CliContext, tenant: str, end_user: str | None, as_json: bool) -> None:
    """Delete TENANT's kept responses, cached answers, files and batches. The ledger stays: it holds no prompts."""

    async def work(books: Books, owner: Tenant, cache: Invalidator) -> Erased:
        async with books.db.begin() as session:
            detail = {"end_user": end_user} if end_user is not None else {}
            audit.record(session, books.actor, "tenant.erased", owner.id, tenant_id=owner.id, detail=detail)
        return await erase(books.db, cache, owner.id, end_user=end_user)

    erased = with_cache(obj, tenant, work)
    if as_json:
        print_json(msgspec.to_builtins(erased))
        return
    counts = msgspec.structs.asdict(erased)
    click.echo(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()) + " erased")
