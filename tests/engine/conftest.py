"""Real small models, converted once a session."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.model_source import resolve_model


@pytest.fixture(scope="session")
def models_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where conversions go; removed at the end, as they are half a gigabyte."""
    folder = tmp_path_factory.mktemp("models")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def smollm2(models_cache: Path) -> Path:
    """SmolLM2-135M-Instruct as a bfloat16 folder."""
    return resolve_model("smollm2", cache_dir=models_cache)


@pytest.fixture(scope="session")
def smollm2_fp32(models_cache: Path) -> Path:
    """SmolLM2-135M-Instruct with the exact dequantised weights."""
    return resolve_model("smollm2", cache_dir=models_cache, dtype="float32")


@pytest.fixture(scope="session")
def first_layers(smollm2: Path, models_cache: Path) -> Path:
    """SmolLM2's first four layers of thirty, with its tokenizer, for tests that need no sense: it starts in a third of
    the time."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    count, folder = 4, models_cache / "first-layers"
    shutil.copytree(smollm2, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": count}))
    further = tuple(f"model.layers.{layer}." for layer in range(count, config["num_hidden_layers"]))
    with safe_open(smollm2 / "model.safetensors", "pt") as weights:
        kept = {name: weights.get_tensor(name) for name in weights.keys() if not name.startswith(further)}  # noqa: SIM118
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder
