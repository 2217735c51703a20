"""`weir migrate`: the database's schema, from nothing or from any earlier version."""

from __future__ import annotations

import click

from gateway.cli.context import CliContext


@click.command("migrate")
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if the schema is not this version's.")
@click.pass_obj
def command(obj: CliContext, check: bool) -> None:
    """Bring the database to this version's schema. Safe to run twice, and beside running gateways."""
    from billing import db

    settings = obj.settings
    settings.data_path.mkdir(parents=True, exist_ok=True, mode=0o700)
    url = settings.effective_database_url
    if check:
        current, head = obj.run(db.revisions(url))
        click.echo(f"schema {current or 'empty'}, this version wants {head}")
        raise SystemExit(0 if current == head else 1)
    before, head = obj.run(db.revisions(url))
    obj.run(db.upgrade(url))
    click.echo(f"schema {head}" + ("" if before != head else " (nothing to do)"))
