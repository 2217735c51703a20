"""`make release-check`: a GPU run vouches for the code it ran, and for no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpu_tests

ROW = "2026-01-01,abc,{digest},card,2.11.0,3.6.0,{passed},{failed},0,50\n"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_tests, "RESULTS", tmp_path / "gpu_tests.csv")
    monkeypatch.setattr(gpu_tests, "ROOT", tmp_path)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "one.py").write_text("x = 1\n")

    def write(**values: object) -> None:
        row = ROW.format(**{"digest": gpu_tests.source_sha256(), "passed": 5, "failed": 0, **values})
        gpu_tests.RESULTS.write_text(",".join(gpu_tests.COLUMNS) + "\n" + row)

    return write


def test_a_passing_run_of_the_same_sources_is_accepted(record):
    record()
    assert gpu_tests.check() == 0


@pytest.mark.parametrize("values", [{"failed": 1}, {"passed": 0}, {"digest": "0" * 64}], ids=str)
def test_a_failing_empty_or_older_run_is_refused(record, values):
    record(**values)
    assert gpu_tests.check() == 1


def test_a_changed_kernel_asks_for_a_new_run(record, capsys):
    record()
    (gpu_tests.ROOT / "kernels" / "one.py").write_text("x = 2\n")
    assert gpu_tests.check() == 1
    assert "make gpu-test" in capsys.readouterr().out


def test_no_run_at_all_is_refused(record):
    assert gpu_tests.check() == 1
