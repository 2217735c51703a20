"""The pages' tables of faults that others have had: every row names tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def rows_of(text: str, heading: str | None = None) -> list[str]:
    """The table's rows without its head; under `heading` alone where one is given."""
    if heading is not None:
        text = text.split(heading, 1)[1].split("\n## ", 1)[0]
    return [line for line in text.splitlines() if line.startswith("| ")][1:]


def check_rows(rows: list[str], *, prefix: str = "tests/") -> None:
    """Each row names tests as `path.py::test_name`, every path with `prefix`: "" where the page leaves out `tests/`.
    Raises: AssertionError."""
    folder = ROOT if prefix else ROOT / "tests"
    for row in rows:
        named = re.findall(rf"`({prefix}[\w/]+\.py)::(test_\w+)`", row)
        assert named, row
        for path, function in named:
            assert f"def {function}(" in (folder / path).read_text(encoding="utf-8"), f"{path}::{function}"
