"""`weir doctor`: what is wrong on this host."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from gateway.cli.context import CliContext
from gateway.cli.options import setting_options
from gateway.cli.output import json_option, print_rows


@click.command("doctor")
@click.argument("model", required=False)
@setting_options(exclude=("model", "data_dir", "database_url", "redis_url"))
@json_option
@click.pass_obj
def command(obj: CliContext, /, model: str | None, as_json: bool, **flags: Any) -> None:
    """Say what is wrong on this host: device, memory, Redis, database, clocks, secrets, journal.

    Takes the settings of `weir serve` and changes nothing. Exit status 1 when something would keep Weir from starting
    or from keeping its books.
    """
    from gateway.doctor import Level, examine

    findings = obj.run(examine(obj.with_flags({"model": model, **flags})))
    print_rows(
        [msgspec.to_builtins(finding) for finding in findings], ["level", "about", "detail", "remedy"], as_json=as_json
    )
    raise SystemExit(1 if any(finding.level is Level.FAIL for finding in findings) else 0)
