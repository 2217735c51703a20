from __future__ import annotations

from pathlib import Path

import pytest

from engine.model_config import parse_model_config
from engine.model_info import make_model_info, model_revision


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


def test_what_the_model_runs_in_is_part_of_the_revision(folder: Path) -> None:
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 10, "hidden_size": 8,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 16,
    }  # fmt: skip
    config = parse_model_config(shape)
    settings: list[dict[str, str]] = [
        {"dtype": "bfloat16"},
        {"dtype": "float32"},
        {"dtype": "bfloat16", "quantization": "int8"},
        {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
    ]
    revisions = {
        make_model_info("m", folder, config, max_model_len=16, num_parameters=1, **setting).revision
        for setting in settings
    }
    assert len(revisions) == len(settings)
