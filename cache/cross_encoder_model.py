"""The cross-encoder itself, through sentence-transformers: reads two questions together and says whether they are one.

Shaped like `SentenceModel`, so that the same process serves both: texts come in pairs, and a pair's probability comes
back as a vector of one number. Imported only inside that process: it brings torch along.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from cache.embedder import EmbedderSpec, Embedding
from cache.errors import EmbedderUnavailable


class PairModel:
    """One loaded cross-encoder with one output. Never reaches for the network.

    Raises: EmbedderUnavailable if the folder does not load or the model has several outputs (an NLI head).
    """

    dims = 1

    def __init__(self, spec: EmbedderSpec) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            from sentence_transformers import CrossEncoder

            self._model: Any = CrossEncoder(spec.path, device="cpu", local_files_only=True)
        except (ImportError, OSError, ValueError, KeyError) as exc:
            raise EmbedderUnavailable(f"the cross-encoder in {spec.path!r} does not load: {exc}") from exc
        if self._model.config.num_labels != 1:
            labels = self._model.config.num_labels
            raise EmbedderUnavailable(f"the cross-encoder in {spec.path!r} has {labels} outputs, it must have 1")

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """Probabilities of the pairs (texts[0], texts[1]), (texts[2], texts[3]), ... Raises: ValueError."""
        if len(texts) % 2:
            raise ValueError(f"{len(texts)} texts are no pairs")
        pairs = list(zip(texts[::2], texts[1::2], strict=True))
        scores = self._model.predict(pairs, convert_to_numpy=True, show_progress_bar=False)  # a sigmoid for one output
        return [Embedding(np.array([score], np.float32), 0) for score in scores]
