"""The embedding model itself, through sentence-transformers. Imported only inside a backend: it brings torch along."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from cache.embedder import EmbedderSpec, Embedding
from cache.errors import EmbedderUnavailable


class SentenceModel:
    """One loaded model. Not safe for two threads at a time.

    Raises: EmbedderUnavailable if the folder does not load. Never reaches for the network.
    """

    def __init__(self, spec: EmbedderSpec) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            from sentence_transformers import SentenceTransformer

            self._model: Any = SentenceTransformer(spec.path, device="cpu", local_files_only=True)
        except (ImportError, OSError, ValueError, KeyError) as exc:
            raise EmbedderUnavailable(f"the embedder in {spec.path!r} does not load: {exc}") from exc
        self._tokenizer: Any = self._model.tokenizer
        self._unknown_id: int | None = self._tokenizer.unk_token_id
        self.max_tokens = int(self._model.max_seq_length)
        self.dims = int(self._model.get_embedding_dimension())

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """Unit vectors with their token counts, in order."""
        vectors = self._model.encode(
            list(texts), batch_size=32, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False
        ).astype(np.float32, copy=False)
        ids = self._tokenizer(list(texts), truncation=False, padding=False, verbose=False)["input_ids"]
        return [
            Embedding(vector, len(tokens), len(tokens) > self.max_tokens, self._unknown_id in tokens)
            for vector, tokens in zip(vectors, ids, strict=True)
        ]
