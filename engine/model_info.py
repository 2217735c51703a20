"""`ModelInfo` of a model folder: what the gateway and the cache need to know, without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine.model_config import ModelConfig
from engine.types import ModelInfo

_SAMPLE_BYTES = 4096
_SAMPLES = 32
_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


def model_revision(folder: Path) -> str:
    """Hex SHA-256 that changes when answers could: every small file whole, every weight file by its size, its first
    64 KiB (the safetensors header) and 32 evenly spread samples.

    Hashing all weights would cost a start minutes on a large model; a different checkpoint differs in its samples.
    """
    digest = hashlib.sha256()
    for name in _TEXT_FILES:
        path = folder / name
        if path.is_file():
            _frame(digest, name.encode(), path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        _frame(digest, path.name.encode(), _sample(path))
    return digest.hexdigest()


def make_model_info(
    name: str,
    folder: Path,
    config: ModelConfig,
    *,
    dtype: str,
    max_model_len: int,
    num_parameters: int,
    quantization: str = "",
    kv_cache_dtype: str = "auto",
) -> ModelInfo:
    """Args: dtype is what the weights run in. It, the weights' quantization and the KV pages' dtype change answers, so
    they are part of the revision."""
    numerics = f"{model_revision(folder)}:{dtype}:{quantization}:{kv_cache_dtype}"
    revision = hashlib.sha256(numerics.encode()).hexdigest()
    return ModelInfo(
        name=name,
        path=str(folder),
        revision=revision,
        architecture=config.architecture,
        max_model_len=max_model_len,
        vocab_size=config.vocab_size,
        logits_width=config.vocab_size,
        dtype=dtype,
        eos_token_ids=config.eos_token_ids,
        bos_token_id=config.bos_token_id,
        num_parameters=num_parameters,
    )


def _sample(path: Path) -> bytes:
    size_bytes = path.stat().st_size
    pieces = [str(size_bytes).encode()]
    with path.open("rb") as file:
        pieces.append(file.read(65536))
        for i in range(_SAMPLES):
            file.seek(max(0, (size_bytes - _SAMPLE_BYTES) * i // (_SAMPLES - 1)))
            pieces.append(file.read(_SAMPLE_BYTES))
    return b"".join(pieces)


def _frame(digest: hashlib._Hash, name: bytes, content: bytes) -> None:
    """Length-framed, so that no two sets of files join to the same bytes."""
    for part in (name, content):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
