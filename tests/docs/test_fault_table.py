"""docs/contributor/billing.md: every fault of its table has tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_fault_of_other_gateways_has_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "contributor" / "billing.md").read_text(encoding="utf-8")
    table = text.split("## Faults of other gateways", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 23
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", row)
        assert named, row
        for path, function in named:
            source = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert f"def {function}(" in source, f"{path}::{function}"
