"""The embedder in a thread of this process: for libraries, tests and tools. Gateways use the process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cache.embedder import EmbedderSpec, Embedding
from cache.embedder_model import SentenceModel
from cache.errors import EmbedderUnavailable


class ThreadBackend:
    """A `Backend` whose model lives in one worker thread with one OpenMP thread."""

    def __init__(self, spec: EmbedderSpec) -> None:
        self._spec = spec
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedder")
        self._model: SentenceModel | None = None

    async def start(self) -> int:
        self._model = await asyncio.get_running_loop().run_in_executor(self._executor, self._load)
        return self._model.dims

    def _load(self) -> SentenceModel:
        from threadpoolctl import threadpool_limits

        model = SentenceModel(self._spec)
        model.embed(["warm up"])  # torch sizes a thread's pool at its first parallel region; limit it after that
        # omp_set_num_threads holds for the calling thread alone, so the engine's threads keep theirs.
        threadpool_limits(limits=1, user_api="openmp")
        return model

    async def run(self, texts: Sequence[str]) -> list[Embedding]:
        if self._model is None:
            raise EmbedderUnavailable("the embedder's thread is not running")
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._model.embed, texts)

    async def close(self) -> None:
        self._model = None
        await asyncio.to_thread(self._executor.shutdown)
