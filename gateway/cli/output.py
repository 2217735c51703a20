"""Output of commands: a table for people, JSON lines of the same values for programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def print_json(value: Any) -> None:
    """Writes one JSON document, indented, keys in their own order."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, title: str = "") -> None:
    """Rows as a table of `columns`, or as one JSON array with every key. An empty table says so."""
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        click.echo(f"no {title or 'rows'}")
        return
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    # Piped output keeps whole values: rich would otherwise fold them at 80 columns.
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return str(value)
