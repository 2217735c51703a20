"""`weir reconcile`: do the books agree? The ledger is the truth and is never touched."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from billing.reconcile import Findings, Repairs
from billing.service import Billing
from gateway.cli.books import run_with_billing
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_json

DRIFT_EXIT = 3


@click.command("reconcile")
@click.option("--check", is_flag=True, help=f"Compare only; exit code {DRIFT_EXIT} when anything disagrees.")
@json_option
@click.pass_obj
def command(obj: CliContext, check: bool, as_json: bool) -> None:
    """Compare ledger, roll-ups, Redis counters and journal, then repair what is derived from the ledger.

    May run beside gateways that serve: a drift counts only when it stays the same over several readings.
    """
    before, repairs, after = run_with_billing(obj, _compare if check else _compare_and_repair)
    if as_json:
        print_json({"before": _plain(before), "repairs": msgspec.to_builtins(repairs), "after": _plain(after)})
    else:
        _print_findings(before)
        if repairs is not None:
            for name, value in msgspec.structs.asdict(repairs).items():
                click.echo(f"{name.replace('_', ' ')}: {value}")
    if not after.clean:
        click.echo("weir: the books do not agree", err=True)
        sys.exit(DRIFT_EXIT)


async def _compare(billing: Billing) -> tuple[Findings, Repairs | None, Findings]:
    found = await billing.reconciler.check()
    return found, None, found


async def _compare_and_repair(billing: Billing) -> tuple[Findings, Repairs | None, Findings]:
    before = await billing.reconciler.check()
    repairs = await billing.reconciler.repair(billing.ledger, billing.reaper)
    return before, repairs, await billing.reconciler.check()


def _plain(found: Findings) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {"clean": found.clean, **plain}


def _print_findings(found: Findings) -> None:
    click.echo(f"{found.buckets_compared} roll-up buckets compared, {len(found.buckets_wrong)} wrong")
    click.echo(f"{found.counters_compared} budget counters compared, {len(found.counters_wrong)} wrong")
    for drift in found.counters_wrong:
        click.echo(
            f"  {drift.quota} of {drift.scope} {drift.scope_id}: counter {drift.committed}, ledger {drift.ledger}"
            f" nano-USD; holds off by {drift.held_drift}"
        )
    click.echo(f"{found.open_holds} holds open, {found.expired_holds} of them overdue")
    click.echo(f"{found.journal_files} journal files wait to be replayed")
    if found.rows_not_adding_up or found.orphan_corrections:
        click.echo(f"{found.rows_not_adding_up} rows do not add up, {found.orphan_corrections} corrections name no row")
    click.echo("the books agree" if found.clean else "the books do not agree")
