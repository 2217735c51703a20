"""docs/cache.md names real files, and a real test for every fault of other caches."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.fault_table import check_rows, rows_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "cache.md").read_text(encoding="utf-8")


def test_every_fault_of_other_caches_has_a_test_that_exists() -> None:
    rows = rows_of(TEXT, "## Faults of other caches")
    assert len(rows) == 19
    check_rows(rows)


def test_every_file_named_exists() -> None:
    named = set(re.findall(r"`((?:cache|gateway|benchmarks)/[\w/]+\.(?:py|csv))", TEXT))
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).is_file()] == []
