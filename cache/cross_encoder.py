"""The optional cross-encoder for winners in the uncertain band, in a supervised process as the embedder's."""

from __future__ import annotations

import asyncio

from cache.embedder import EmbedderSpec, Embedding
from cache.embedder_process import ProcessBackend
from cache.errors import EmbedderUnavailable


class CrossEncoder:
    """A `semantic.Reranker` over a sentence-transformers cross-encoder's folder. `timeout_s` bounds one verdict.

    Errors are the caller's to take for a miss, as `SemanticCache` does.
    """

    def __init__(self, path: str, *, timeout_s: float = 0.5, backend: ProcessBackend | None = None) -> None:
        self._backend = backend or ProcessBackend(EmbedderSpec(path=path), model="pairs")
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Raises: EmbedderUnavailable if the model does not load."""
        await self._backend.start()

    async def close(self) -> None:
        await self._backend.close()

    async def score(self, asked: str, stored: str) -> float:
        """The probability, 0 to 1, that both want the same answer: the lower one of both orders.

        Raises: EmbedderUnavailable, also when it takes too long.
        """
        task = asyncio.create_task(self._run([asked, stored, stored, asked]))
        task.add_done_callback(_seen)
        try:
            async with asyncio.timeout(self._timeout_s):
                # Not cancelled by the timeout: the process would have to be replaced, as its answer is on its way.
                both = await asyncio.shield(task)
        except TimeoutError as exc:
            raise EmbedderUnavailable(f"the cross-encoder took longer than {self._timeout_s} s") from exc
        return min(float(item.vector[0]) for item in both)

    async def _run(self, texts: list[str]) -> list[Embedding]:
        async with self._turn:  # the process answers one batch at a time
            return await self._backend.run(texts)


def _seen(task: asyncio.Task[list[Embedding]]) -> None:
    """Takes note of a late error, which nobody waits for any more."""
    if not task.cancelled():
        task.exception()
