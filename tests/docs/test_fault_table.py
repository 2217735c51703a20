"""docs/contributor/billing.md: every fault of its table has tests that exist."""

from __future__ import annotations

from pathlib import Path

from tests.docs.fault_table import check_rows, rows_of

ROOT = Path(__file__).resolve().parents[2]


def test_every_fault_of_other_gateways_has_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "contributor" / "billing.md").read_text(encoding="utf-8")
    rows = rows_of(text, "## Faults of other gateways")
    assert len(rows) >= 23
    check_rows(rows, prefix="")
