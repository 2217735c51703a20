"""`weir routes`: what model names mean."""

from __future__ import annotations

import re
import sys
from typing import Any

import aiohttp
import click
import msgspec

from billing import audit, config
from billing.errors import Invalid, NotFound
from billing.principal import Principal, Role
from billing.tables import ConfigItem
from gateway.cli.books import Books, run_with_books
from gateway.cli.cache_fields import cache_option, with_fields
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows
from gateway.config_check import OWN_UNKNOWN, check_targets, read_item
from gateway.route_config import ROUTE, UPSTREAM
from gateway.route_trial import try_route
from gateway.routing import RouteSpec, build_table
from gateway.upstreams.base import Upstream
from gateway.upstreams.registry import Surroundings, UpstreamSpec, build

COLUMNS = ["name", "strategy", "targets", "canary", "retries", "timeout_s", "default_max_tokens", "cache", "version"]
_TARGET = re.compile(r"([^/\s]+)/([^\s]+?)(?:=(\d+(?:\.\d+)?))?")
_HOST = Principal(
    tenant_id="host",
    tenant_slug="host",
    project_id="host",
    project_slug="host",
    key_id="host",
    key_name="host",
    scopes=frozenset(),
    role=Role.OPERATOR,
)


def row_of(item: ConfigItem) -> dict[str, Any]:
    """A route as commands print it."""
    row: dict[str, Any] = msgspec.to_builtins(msgspec.convert(item.body, RouteSpec))
    return {"name": item.name, "version": item.version, **row}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    targets = [f"{t['upstream']}/{t['model']}={t['weight']:g}" for t in row["targets"]]
    canary = row["canary"]
    shown = f"{canary['upstream']}/{canary['model']} at {row['canary_share']:.1%}" if canary else None
    return {**row, "targets": targets, "canary": shown}


@click.group("routes")
def command() -> None:
    """What a model name means: targets, weights, fallbacks, canaries. A model served here needs no route."""


@command.command("list")
@json_option
@click.pass_obj
def list_(obj: CliContext, as_json: bool) -> None:
    """Routes."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            return [row_of(item) for item in await config.list_items(session, ROUTE)]

    rows = run_with_books(obj, work)
    print_rows(rows if as_json else [_shown(row) for row in rows], COLUMNS, as_json=as_json, title="routes")


@command.command("set")
@click.argument("name")
@click.option(
    "--target", "targets", multiple=True, required=True, metavar="UPSTREAM/MODEL[=WEIGHT]", help="In order; repeat."
)
@click.option(
    "--strategy", type=click.Choice(["ordered", "weighted", "cheapest"]), default="ordered", show_default=True
)
@click.option("--canary", metavar="UPSTREAM/MODEL", help="Gets a share of the requests; the targets are its fallback.")
@click.option("--canary-share", type=click.FloatRange(0, 1), default=0.0, show_default=True)
@click.option("--retries", type=click.IntRange(0, 5), default=1, show_default=True, help="More tries at one target.")
@click.option("--timeout-s", type=float, help="How long one try waits for its first token.")
@click.option("--default-max-tokens", type=click.IntRange(1), help="Output of a chat that asks for no amount.")
@cache_option
@json_option
@click.pass_obj
def set_(
    obj: CliContext,
    name: str,
    targets: tuple[str, ...],
    strategy: str,
    canary: str | None,
    canary_share: float,
    retries: int,
    timeout_s: float | None,
    default_max_tokens: int | None,
    cache_fields: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create or replace route NAME; running gateways follow within a second.

    \b
    weir routes set chat --target local/smollm2 --target east/llama-3.1-8b
    weir routes set chat --strategy weighted --target local/smollm2=3 --target east/llama-3.1-8b=1
    """
    body = {
        "targets": [_target(word) for word in targets],
        "strategy": strategy,
        "canary": _target(canary) if canary else None,
        "canary_share": canary_share,
        "retries": retries,
        "timeout_s": timeout_s,
        "default_max_tokens": default_max_tokens,
        **({"cache": with_fields({}, cache_fields)} if cache_fields else {}),
    }

    async def work(books: Books) -> dict[str, Any]:
        spec = read_item(ROUTE, name, body)
        assert isinstance(spec, RouteSpec)
        async with books.db.begin() as session:
            upstreams = await config.list_items(session, UPSTREAM)
            served = {item.name: frozenset(item.body.get("models", {})) for item in upstreams}
            check_targets(name, spec, {**OWN_UNKNOWN, **served})
            return row_of(await config.set_item(session, books.actor, ROUTE, name, msgspec.to_builtins(spec)))

    row = run_with_books(obj, work)
    print_rows([row if as_json else _shown(row)], COLUMNS, as_json=as_json)


@command.command("remove")
@click.argument("name")
@click.pass_obj
def remove(obj: CliContext, name: str) -> None:
    """Remove route NAME."""

    async def work(books: Books) -> None:
        async with books.db.begin() as session:
            await config.remove_item(session, books.actor, ROUTE, name)

    run_with_books(obj, work)
    click.echo(f"{name} removed")


@command.command("test")
@click.argument("name")
@json_option
@click.pass_obj
def test(obj: CliContext, name: str, as_json: bool) -> None:
    """Ask every target of route NAME for one token, from this host; nobody pays.

    This server's own engine is asked by POST /admin/v1/routes/NAME/test on the running gateway.
    """
    rows = run_with_books(obj, lambda books: _trial(books, name))
    print_rows(rows, ["target", "ok", "latency_ms", "error"], as_json=as_json)
    if not all(row["ok"] for row in rows):
        sys.exit(1)


async def _trial(books: Books, name: str) -> list[dict[str, Any]]:
    async with books.db.begin() as session:
        found = {item.name: item for item in await config.list_items(session, ROUTE)}.get(name)
        if found is None:
            raise NotFound(f"no such route: {name[:80]!r}")
        upstreams = await config.list_items(session, UPSTREAM)
        audit.record(session, books.actor, "route.tested", name)
    spec = read_item(ROUTE, name, found.body)
    assert isinstance(spec, RouteSpec)
    remote = tuple(target for target in spec.targets if target.upstream not in OWN_UNKNOWN)
    if not remote:
        raise Invalid(f"route {name!r} has targets of this server's own engine only: ask the running gateway")
    async with aiohttp.ClientSession() as http:
        around = Surroundings(http, books.secret, lambda text: len(text) // 4)
        built: list[Upstream] = []
        for item in upstreams:
            upstream = read_item(UPSTREAM, item.name, item.body)
            assert isinstance(upstream, UpstreamSpec)
            built += build(item.name, upstream, around)
        table = build_table({name: msgspec.structs.replace(spec, targets=remote, canary=None)}, built, {})
        route = table.get(name)
        assert route is not None
        trial = await try_route(route, _HOST, [0])
    rows: list[dict[str, Any]] = msgspec.to_builtins(trial.targets)
    return rows


def _target(word: str) -> dict[str, Any]:
    match = _TARGET.fullmatch(word)
    if match is None:
        raise click.BadParameter(f"{word!r} is not UPSTREAM/MODEL or UPSTREAM/MODEL=WEIGHT", param_hint="--target")
    return {"upstream": match[1], "model": match[2], "weight": float(match[3] or 1)}
