"""A report's rows as people and programs read them: names beside ids, USD beside nano-USD, OpenAI's token names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.money import format_usd
from billing.reports.names import OWNERS, names_in
from billing.reports.report import ColumnKind, ReportTable
from billing.tables import LedgerEntry

_NANO = "_nano_usd"


async def shown_rows(session: AsyncSession, table: ReportTable) -> list[dict[str, Any]]:
    """The table's rows, each as `shown_row` has it."""
    names = await names_in(session, table.rows)
    return [shown_row(row, names) for row in table.rows]


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


async def shown_entries(session: AsyncSession, entries: list[LedgerEntry]) -> list[dict[str, Any]]:
    """Ledger rows with every column."""
    keys = [attribute.key for attribute in sa.inspect(LedgerEntry).column_attrs]
    rows = [{key: getattr(entry, key) for key in keys} for entry in entries]
    names = await names_in(session, rows)
    return [shown_row(row, names) for row in rows]
