"""benchmarks/results: rows are appended under one head, and a row that does not fit it is refused whole."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import results_file

COLUMNS = ("date", "commit", "system", "ms")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_are_appended_under_one_head_each_with_its_date_and_commit(tmp_path: Path) -> None:
    path = tmp_path / "new" / "speed.csv"
    results_file.append(path, COLUMNS, [{"system": "a", "ms": 1}, {"system": "b, c", "ms": 2}])
    results_file.append(path, COLUMNS, [{"commit": "abc", "system": "d"}])

    assert [(row["system"], row["ms"]) for row in rows_of(path)] == [("a", "1"), ("b, c", "2"), ("d", "")]
    assert [row["commit"] for row in rows_of(path)] == [results_file.commit()] * 2 + ["abc"]
    assert all(row["date"] for row in rows_of(path))
    assert b"\r" not in path.read_bytes()


def test_a_file_with_other_columns_and_a_row_with_another_are_left_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "speed.csv"
    results_file.append(path, COLUMNS, [{"system": "a", "ms": 1}])
    before = path.read_bytes()

    with pytest.raises(ValueError, match=r"speed\.csv has the columns date,commit,system,ms, not date,commit,ms"):
        results_file.append(path, ("date", "commit", "ms"), [{"ms": 1}])
    with pytest.raises(ValueError, match=r"speed\.csv has no column rps"):
        results_file.append(path, COLUMNS, [{"system": "b"}, {"rps": 1}])
    assert path.read_bytes() == before


@pytest.mark.parametrize("path", sorted(results_file.FOLDER.glob("*.csv")), ids=lambda path: path.name)
def test_every_recorded_row_has_all_cells_of_its_head(path: Path) -> None:
    assert all(None not in row and None not in row.values() for row in rows_of(path))
    assert b"\r" not in path.read_bytes()
