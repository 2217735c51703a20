"""The command line: one file a group of commands, loaded when it is asked for so that `weir --help` stays quick."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from billing.errors import BillingError
from gateway.cli.context import CliContext
from gateway.settings import SettingsError
from gateway.startup import StartupError

# name -> (module in gateway.cli, one line for `weir --help`)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "Serve a model behind the OpenAI API."),
    "tenants": ("tenants", "Who pays."),
    "projects": ("projects", "Business lines and cost centres of a tenant."),
    "keys": ("keys", "API keys: make, list, rotate, revoke."),
    "limits": ("limits", "What may be used and spent."),
    "prices": ("prices", "What a million tokens costs."),
    "routes": ("routes", "What model names mean: targets, weights, fallbacks."),
    "upstreams": ("upstreams", "Other servers that requests may be sent to."),
    "cache": ("cache", "The answer cache: usage, invalidation."),
    "erase": ("erase", "Delete what a tenant or an end user left beside the books."),
    "apply": ("apply", "Tenants, limits, prices and routes in bulk, from a file."),
    "report": ("report", "Who spent what, what the cache saved, charged beside cost."),
    "ledger": ("ledger", "The rows of the books."),
    "reconcile": ("reconcile", "Compare ledger, roll-ups, counters and journal; repair what is derived."),
    "audit": ("audit", "Who changed what."),
    "alerts": ("alerts", "Webhooks for limits, forecasts and drift."),
    "bench": ("bench", "Measure a model on this host, without a server."),
    "migrate": ("migrate", "Bring the database to this version's schema."),
    "doctor": ("doctor", "Say what is wrong on this host."),
    "settings": ("settings", "Every setting: flag, variable, default, meaning."),
}


class LazyGroup(click.Group):
    """Imports a command's module when it runs or shows its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = importlib.import_module(f"gateway.cli.{entry[0]}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `weir serve smollm2 --demo`. `weir COMMAND --help` teaches each command.",
)
@click.option("--config", type=click.Path(path_type=Path), help="Settings file. Default: weir.toml here, if there.")
@click.option("--data-dir", help="Folder for everything a run writes. Default: var")
@click.option("--database-url", help="SQLAlchemy URL. Default: SQLite in the data folder")
@click.option("--redis-url", help="Redis or Valkey >= 6.2. Default: the embedded one")
@click.version_option(package_name="tokenweir", prog_name="weir")
@click.pass_context
def root(
    ctx: click.Context, config: Path | None, data_dir: str | None, database_url: str | None, redis_url: str | None
) -> None:
    """Weir: a multi-tenant, cost-governed gateway for large language models, with its engine built in."""
    flags = {"data_dir": data_dir, "database_url": database_url, "redis_url": redis_url}
    ctx.obj = CliContext(config, flags)


def main() -> None:
    """Runs `weir`; a fault of settings or start-up is printed in full, without a traceback, with exit code 2."""
    try:
        root(prog_name="weir", standalone_mode=True)
    except SettingsError as exc:
        for fault in exc.faults:
            click.echo(f"weir: {fault}", err=True)
        sys.exit(2)
    except StartupError as exc:
        click.echo(f"weir: {exc}", err=True)
        sys.exit(2)
    except BillingError as exc:
        click.echo(f"weir: {exc}", err=True)
        sys.exit(1)
