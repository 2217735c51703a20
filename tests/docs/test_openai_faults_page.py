"""docs/contributor/openai_faults.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_fault_has_tests_that_exist() -> None:
    text = (ROOT / "docs" / "contributor" / "openai_faults.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 38
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert named, row
        for path, function in named:
            assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{function}"
