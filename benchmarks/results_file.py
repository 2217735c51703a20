"""The CSV files of benchmarks/results: rows are only ever appended, each with its date and commit."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"


@cache
def commit() -> str:
    """The short hash of HEAD; `unknown` on a host without the repository."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def stamp() -> dict[str, str]:
    """`date` (today, UTC) and `commit`."""
    return {"date": datetime.now(UTC).date().isoformat(), "commit": commit()}


def append(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Append `rows`, stamped where they have no date or commit of their own; a new file begins with `columns`.

    Raises: ValueError where the file has other columns, or a row has one that is not among them; nothing is written.
    """
    head = ""
    if path.exists():
        with path.open(encoding="utf-8") as file:
            head = file.readline().strip()
    if head and head.split(",") != list(columns):
        raise ValueError(f"{path.name} has the columns {head}, not {','.join(columns)}")
    stamped = [stamp() | dict(row) for row in rows]
    for name in (name for row in stamped for name in row):
        if name not in columns:
            raise ValueError(f"{path.name} has no column {name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if not head:
            writer.writeheader()
        writer.writerows(stamped)
