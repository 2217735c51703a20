"""`weir settings`: every setting, made from the definitions themselves."""

from __future__ import annotations

import click

from gateway.cli.output import json_option, print_rows
from gateway.settings import all_settings, describe_type


@click.command("settings")
@json_option
@click.option("--markdown", is_flag=True, help="Print docs/operator/settings.md.")
def command(as_json: bool, markdown: bool) -> None:
    """Every setting with its flag, variable, type, default and meaning.

    weir.toml takes the names with - or _; a variable is WEIR_ and the name in capitals; a flag wins over both.
    """
    rows = [
        {
            "name": info.name,
            "flag": info.flag,
            "variable": info.env,
            "type": describe_type(info.type),
            "default": _shown(info.default),
            "meaning": info.description,
        }
        for info in all_settings().values()
    ]
    if markdown:
        click.echo(reference_page(rows), nl=False)
        return
    print_rows(rows, ["flag", "type", "default", "meaning"], as_json=as_json)


def reference_page(rows: list[dict[str, str]]) -> str:
    """docs/operator/settings.md; a test holds the file to it."""
    lines = [
        "# Settings",
        "",
        "From `weir.toml` in the working folder (or `--config FILE`), then `WEIR_*` variables, then flags; the",
        "later one wins. Unknown names are refused and every fault is reported at once. In `weir.toml` names may",
        "be written with `-` or `_`; lists are arrays there and comma-separated elsewhere; a switch as a flag is",
        "`--name` or `--no-name`. This page is made by `weir settings --markdown`.",
        "",
        "| flag | variable | type | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (f"`{row['flag']}`", f"`{row['variable']}`", row["type"], f"`{row['default']}`", row["meaning"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") if cell != "``" else "" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    if isinstance(default, bool):
        return str(default).lower()
    return str(default)
