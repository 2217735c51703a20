"""The embedder process: `python -m cache.embedder_child MODEL PATH`; batches in by stdin, results out by stdout.

MODEL is "sentences" (the embedder) or "pairs" (the cross-encoder).

It ends when its stdin does, so it never outlives the gateway that started it, however that one ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import BinaryIO, Protocol

import numpy as np

from cache.embedder import EmbedderSpec, Embedding
from cache.embedder_wire import Batch, Failure, Hello, Result, decode_to_child, frame, frame_length
from cache.errors import EmbedderUnavailable


class Model(Protocol):
    """What the process serves."""

    dims: int

    def embed(self, texts: Sequence[str]) -> list[Embedding]: ...


def load(model: str, path: str) -> Model:
    """Raises: EmbedderUnavailable."""
    spec = EmbedderSpec(path=path)
    if model == "pairs":
        from cache.cross_encoder_model import PairModel

        return PairModel(spec)
    from cache.embedder_model import SentenceModel

    return SentenceModel(spec)


def main(kind: str, path: str) -> int:
    """Returns the exit status: 1 if the model does not load."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not stand between the frames
    try:
        model = load(kind, path)
        model.embed(["warm", "up"])
    except EmbedderUnavailable as exc:
        _send(sink, frame(Failure(-1, str(exc))))
        return 1
    _send(sink, frame(Hello(model.dims)))
    while (batch := _receive(source)) is not None:
        _send(sink, frame(_answer(model, batch)))
    return 0


def _answer(model: Model, batch: Batch) -> Result | Failure:
    try:
        embeddings = model.embed(batch.texts)
    except Exception as exc:  # noqa: BLE001  # the busy loop: a batch that fails, fails alone
        return Failure(batch.number, f"{type(exc).__name__}: {exc}")
    vectors = np.stack([item.vector for item in embeddings]).tobytes() if embeddings else b""
    flags = [item.truncated | item.has_unknown << 1 for item in embeddings]
    return Result(batch.number, vectors, [item.num_tokens for item in embeddings], flags)


def _receive(source: BinaryIO) -> Batch | None:
    header = source.read(4)
    if len(header) < 4:
        return None
    length = frame_length(header)
    body = source.read(length)
    return decode_to_child(body) if len(body) == length else None


def _send(sink: BinaryIO, raw: bytes) -> None:
    sink.write(raw)
    sink.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2]))
