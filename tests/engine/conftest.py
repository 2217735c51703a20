"""Real small models, converted once a session."""

from __future__ import annotations

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
