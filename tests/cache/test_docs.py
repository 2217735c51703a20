"""docs/cache.md names real files, and a real test for every fault of other caches."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "cache.md").read_text(encoding="utf-8")


def test_every_fault_of_other_caches_has_a_test_that_exists() -> None:
    table = TEXT.split("## Faults of other caches", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 19
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert named, row
        for path, function in named:
            assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{function}"


def test_every_file_named_exists() -> None:
    named = set(re.findall(r"`((?:cache|gateway|benchmarks)/[\w/]+\.(?:py|csv))", TEXT))
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).is_file()] == []
