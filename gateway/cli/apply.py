"""`weir apply`: tenants, limits, prices, discounts and routes in bulk, from a file; the difference is shown first."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from billing.apply import Difference, Specification, apply, parse, plan
from gateway.cli.books import Books, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_json
from gateway.config_check import OWN_UNKNOWN, check_document

_SIGNS = {"create": "+", "change": "~", "remove": "-"}


@click.command("apply")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@json_option
@click.pass_obj
def command(obj: CliContext, file: Path, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Make what FILE (TOML or JSON) says so: all of it or nothing.

    What the file does not name stays as it is; but a scope whose limits are given has those and no others.
    """
    spec = parse(file.read_bytes(), name=file.name)

    async def differences(books: Books) -> list[Difference]:
        async with books.db.read() as session:
            await check_document(session, spec, OWN_UNKNOWN)
            return await plan(session, books.actor, spec)

    planned = run_with_books(obj, differences)
    _show(planned, as_json=as_json)
    if dry_run or not planned:
        return
    if not yes:
        click.confirm("Apply?", abort=True, err=True)
    done = run_with_books(obj, lambda books: _apply(books, spec))
    if done != planned:
        click.echo("weir: something else changed meanwhile; this was done:", err=True)
        _show(done, as_json=False, err=True)
    if not as_json:
        click.echo(f"applied {len(done)} changes")


async def _apply(books: Books, spec: Specification) -> list[Difference]:
    async with books.db.begin() as session:
        await check_document(session, spec, OWN_UNKNOWN)
        return await apply(session, books.actor, spec)


def _show(differences: list[Difference], *, as_json: bool, err: bool = False) -> None:
    if as_json:
        print_json(msgspec.to_builtins(differences))
        return
    if not differences:
        click.echo("nothing to change", err=err)
    for each in differences:
        values = " -> ".join(value for value in (each.old, each.new) if value is not None)
        click.echo(f"{_SIGNS[each.action]} {each.what}: {values}", err=err)
