"""`weir cache`: what the answer cache holds of a tenant, and taking answers back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
import msgspec

from billing import audit, tenants
from billing.tables import Tenant
from cache.invalidation import Invalidator, Removed, Selection, Usage
from cache.shadow import ShadowEstimate, ShadowLog
from cache.store import RedisStore
from gateway import redis_client
from gateway.cli.books import Books, redis_at_hand, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_json

T = TypeVar("T")


@click.group("cache")
def command() -> None:
    """The answer cache (not the engine's KV cache)."""


@command.command("usage")
@click.argument("tenant")
@json_option
@click.pass_obj
def usage(obj: CliContext, tenant: str, as_json: bool) -> None:
    """How much of TENANT's answers is held."""

    async def work(_books: Books, owner: Tenant, cache: Invalidator) -> Usage:
        return await cache.usage(owner.id)

    held = with_cache(obj, tenant, work)
    if as_json:
        print_json(msgspec.to_builtins(held))
    else:
        click.echo(f"{held.entries} answers, {held.size_bytes} bytes")


@command.command("invalidate")
@click.argument("tenant")
@click.option("--project", help="Only answers of this project (slug or id).")
@click.option("--model", help="Only answers of this model.")
@click.option("--tag", help="Only answers whose request carried this tag.")
@click.option("--end-user", help="Only answers of this end user's own.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@json_option
@click.pass_obj
def invalidate(
    obj: CliContext,
    tenant: str,
    project: str | None,
    model: str | None,
    tag: str | None,
    end_user: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take TENANT's cached answers back: those that meet every option given, all of them where none is."""

    async def work(books: Books, owner: Tenant, cache: Invalidator) -> Removed:
        async with books.db.begin() as session:
            found = await tenants.get_project(session, books.actor, project, tenant=owner.id) if project else None
            chosen = Selection(project=found.id if found else None, model=model, tag=tag, end_user=end_user)
            if not dry_run:
                detail = {name: value for name, value in msgspec.structs.asdict(chosen).items() if value is not None}
                audit.record(session, books.actor, "cache.invalidated", owner.id, tenant_id=owner.id, detail=detail)
        return await cache.invalidate(owner.id, chosen, dry_run=dry_run)

    removed = with_cache(obj, tenant, work)
    if as_json:
        print_json(msgspec.to_builtins(removed))
    else:
        verb = "would be removed" if dry_run else "removed"
        click.echo(f"{removed.entries} answers, {removed.size_bytes} bytes {verb}")


@command.command("shadow")
@click.argument("tenant")
@click.option("--reset", is_flag=True, help="Start counting anew, as after a change of the threshold.")
@json_option
@click.pass_obj
def shadow(obj: CliContext, tenant: str, reset: bool, as_json: bool) -> None:
    """How many of TENANT's semantic hits are wrong, by those that were generated again (cache_shadow_share)."""

    async def work(_books: Books, owner: Tenant, store: RedisStore) -> ShadowEstimate:
        verdicts = ShadowLog(store)
        if reset:
            await verdicts.reset(owner.id)
        return await verdicts.estimate(owner.id)

    found = _with_store(obj, tenant, work)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        span = f"{found.low:.2%} to {found.high:.2%} with 95 %"
        click.echo(f"{found.wrong} wrong of {found.checked} checked: {found.rate:.2%} ({span})")


def with_cache(obj: CliContext, tenant: str, act: Callable[[Books, Tenant, Invalidator], Awaitable[T]]) -> T:
    """Runs `act` with the books, the tenant and its cache at hand."""

    async def work(books: Books, owner: Tenant, store: RedisStore) -> T:
        return await act(books, owner, Invalidator(store))

    return _with_store(obj, tenant, work)


def _with_store(obj: CliContext, tenant: str, act: Callable[[Books, Tenant, RedisStore], Awaitable[T]]) -> T:
    async def work(books: Books) -> T:
        async with books.db.read() as session:
            owner = await tenants.get_tenant(session, books.actor, tenant)
        with redis_at_hand(obj.settings) as limits_url:
            redis = redis_client.connect(obj.settings.cache_redis_url or limits_url)
            try:
                return await act(books, owner, RedisStore(redis))
            finally:
                await redis.aclose()

    return run_with_books(obj, work)
