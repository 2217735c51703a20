"""docs/engine.md names real files and real tests."""

from __future__ import annotations

import re
from pathlib import Path

from engine.config import EngineConfig
from tests.docs.fault_table import check_rows, rows_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")


def test_every_test_named_in_the_feature_table_exists() -> None:
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", TEXT)
    assert len(named) > 25
    for file, function in named:
        source = (ROOT / "tests" / "engine" / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in source, f"{file}::{function}"


def test_every_fault_has_a_test_that_exists() -> None:
    rows = rows_of(TEXT, "## Faults of other engines")
    assert len(rows) >= 16
    check_rows(rows)


def test_every_file_of_the_walk_exists() -> None:
    files = {name for name in re.findall(r"`(\w+\.py)", TEXT) if not name.startswith("test_")}
    assert len(files) > 20
    assert [name for name in files if not (ROOT / "engine" / name).is_file()] == []


def test_every_engine_flag_named_is_a_setting() -> None:
    flags = {flag.removeprefix("no-").replace("-", "_") for flag in re.findall(r"`--([a-z-]+)", TEXT)}
    known = {*EngineConfig.__struct_fields__, "engine_mode"}
    assert flags - known == set()
