"""`weir upstreams`: OpenAI-compatible servers that requests may be sent to."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from billing import config
from billing.errors import Invalid
from billing.tables import ConfigItem
from gateway.cli.books import Books, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows
from gateway.config_check import OWN_UNKNOWN, read_item
from gateway.route_config import UPSTREAM
from gateway.schemas.admin.routing import UpstreamView

COLUMNS = ["name", "base_url", "models", "has_api_key", "api_key_env", "version"]


def row_of(item: ConfigItem) -> dict[str, Any]:
    """An upstream as commands print it; never its key."""
    row: dict[str, Any] = msgspec.to_builtins(UpstreamView.of(item))
    return row


@click.group("upstreams")
def command() -> None:
    """Other servers to send requests to; `local` is this one's own engine."""


@command.command("list")
@json_option
@click.pass_obj
def list_(obj: CliContext, as_json: bool) -> None:
    """Upstreams."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            return [row_of(item) for item in await config.list_items(session, UPSTREAM)]

    rows = run_with_books(obj, work)
    if not as_json:
        rows = [{**row, "models": sorted(row["models"])} for row in rows]
    print_rows(rows, COLUMNS, as_json=as_json, title="upstreams")


@command.command("set")
@click.argument("name")
@click.argument("base_url")
@click.option("--model", "models", multiple=True, required=True, metavar="MODEL[=THEIRS]", help="Repeat for more.")
@click.option("--api-key-env", metavar="VARIABLE", help="Every gateway's variable that holds its key.")
@click.option("--api-key-stdin", is_flag=True, help="Read its key from standard input; it is stored encrypted.")
@json_option
@click.pass_obj
def set_(
    obj: CliContext,
    name: str,
    base_url: str,
    models: tuple[str, ...],
    api_key_env: str | None,
    api_key_stdin: bool,
    as_json: bool,
) -> None:
    """Create or replace upstream NAME at BASE_URL; running gateways follow within a second.

    \b
    weir upstreams set east https://east.example/v1 --model llama-3.1-8b --api-key-env EAST_KEY
    """
    if api_key_env and api_key_stdin:
        raise click.UsageError("give --api-key-env or --api-key-stdin, not both")
    if name in OWN_UNKNOWN:
        raise Invalid(f"upstream: the name {name!r} is this server's own", param="name")
    key = sys.stdin.readline().strip() if api_key_stdin else None
    body: dict[str, Any] = {"base_url": base_url, "models": dict(_model(word) for word in models)}

    async def work(books: Books) -> dict[str, Any]:
        async with books.db.begin() as session:
            stored = {item.name: item for item in await config.list_items(session, UPSTREAM)}.get(name)
            if key:
                body["api_key_encrypted"] = books.secret.encrypt(key).decode("ascii")
            elif api_key_env:
                body["api_key_env"] = api_key_env
            elif stored is not None:
                body.update({word: value for word, value in stored.body.items() if word.startswith("api_key_")})
            complete: dict[str, Any] = msgspec.to_builtins(read_item(UPSTREAM, name, body))
            return row_of(await config.set_item(session, books.actor, UPSTREAM, name, complete))

    print_rows([run_with_books(obj, work)], COLUMNS, as_json=as_json)


@command.command("remove")
@click.argument("name")
@click.pass_obj
def remove(obj: CliContext, name: str) -> None:
    """Remove upstream NAME; routes lose its targets."""

    async def work(books: Books) -> None:
        async with books.db.begin() as session:
            await config.remove_item(session, books.actor, UPSTREAM, name)

    run_with_books(obj, work)
    click.echo(f"{name} removed")


def _model(word: str) -> tuple[str, str]:
    ours, _, theirs = word.partition("=")
    return ours, theirs
