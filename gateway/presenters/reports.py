"""A report's rows as people and programs read them: names beside ids, USD beside nano-USD, OpenAI's token names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.money import format_usd
from billing.principal import Actor, Role
from billing.reports.names import OWNERS, names_in
from billing.reports.report import ColumnKind, ReportTable
from billing.tables import LedgerEntry

_NANO = "_nano_usd"


async def shown_rows(session: AsyncSession, actor: Actor, table: ReportTable) -> list[dict[str, Any]]:
    """The table's rows, each as `shown_row` has it, as far as they are for the actor's eyes."""
    names = await names_in(session, table.rows)
    return [for_eyes_of(actor, shown_row(row, names)) for row in table.rows]


def for_eyes_of(actor: Actor, row: dict[str, Any]) -> dict[str, Any]:
    """Without what a request cost us, unless an operator asks: margins are no tenant's business."""
    if actor.role is Role.OPERATOR:
        return row
    return {key: value for key, value in row.items() if not is_ours(key)}


def is_ours(key: str) -> bool:
    """True for columns that tell our cost: its money, its version, and the engine's time that it is made of."""
    return key.startswith(("cost_", "margin_")) or key == "engine_us"


def shown_row(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """One row. `tenant`, `project` and `key` become names, their ids stand in `tenant_id` ... beside them.

    Every `x_nano_usd` gets an exact `x_usd` text before it; rows with tokens get `prompt_tokens` and
    `completion_tokens`, as the answers' own usage counts them (cached and batch tokens included).
    """
    shown: dict[str, Any] = {}
    for key, value in row.items():
        owner = key.removesuffix("_id")
        if owner in OWNERS:
            shown[owner] = names.get(value, value)
            shown[f"{owner}_id"] = value
        elif key.endswith(_NANO) and value is not None:
            shown[key.removesuffix(_NANO) + "_usd"] = format_usd(value)
            shown[key] = value
        else:
            shown[key] = value.isoformat() if hasattr(value, "isoformat") else value
    if "input_tokens" in row:
        shown["prompt_tokens"] = row["input_tokens"] + row["cached_input_tokens"] + row["batch_input_tokens"]
        shown["completion_tokens"] = row["output_tokens"] + row["batch_output_tokens"]
    return shown


def table_columns(table: ReportTable) -> list[str]:
    """The keys that a person's table shows, in order: names instead of ids, USD instead of nano-USD."""
    keys = []
    for column in table.columns:
        key = column.key.removesuffix("_id") if column.key.removesuffix("_id") in OWNERS else column.key
        keys.append(key.removesuffix(_NANO) + "_usd" if column.kind is ColumnKind.MONEY else key)
    return keys


async def shown_entries(session: AsyncSession, actor: Actor, entries: list[LedgerEntry]) -> list[dict[str, Any]]:
    """Ledger rows with every column that is for the actor's eyes."""
    keys = [attribute.key for attribute in sa.inspect(LedgerEntry).column_attrs]
    rows = [{key: getattr(entry, key) for key in keys} for entry in entries]
    names = await names_in(session, rows)
    return [for_eyes_of(actor, shown_row(row, names)) for row in rows]
