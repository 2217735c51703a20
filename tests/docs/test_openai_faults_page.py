"""docs/contributor/openai_faults.md names tests that exist."""

from __future__ import annotations

from pathlib import Path

from tests.docs.fault_table import check_rows, rows_of

ROOT = Path(__file__).resolve().parents[2]


def test_every_fault_has_tests_that_exist() -> None:
    text = (ROOT / "docs" / "contributor" / "openai_faults.md").read_text(encoding="utf-8")
    rows = rows_of(text)
    assert len(rows) >= 38
    check_rows(rows)
