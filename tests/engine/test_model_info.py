from __future__ import annotations

from pathlib import Path

import pytest

from engine.model_info import model_revision


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(300_000))
    return tmp_path


def test_the_revision_is_stable_and_does_not_depend_on_the_path(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert model_revision(folder) == model_revision(folder) == model_revision(other)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b'{"a": 1}'),
        ("chat_template.jinja", b"x"),
        ("model.safetensors", bytes(300_001)),
        ("model.safetensors", bytes(299_999) + b"\x01"),
        ("model.safetensors", b"\x01" + bytes(299_999)),
    ],
)
def test_a_change_that_could_change_answers_changes_the_revision(folder: Path, name: str, content: bytes) -> None:
    before = model_revision(folder)
    (folder / name).write_bytes(content)
    assert model_revision(folder) != before
