"""The embedder in a process of its own: started, watched and restarted here, so that gateways import no torch."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cache.embedder import EmbedderSpec, Embedding, try_until_done, unpack_embeddings
from cache.embedder_wire import Batch, Failure, Hello, Result, decode_from_child, frame, frame_length
from cache.errors import EmbedderNotStarted, EmbedderUnavailable

log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0  # importing torch from a cold disk has been seen to take 40 s
RUN_TIMEOUT_S = 30.0  # a batch of 32 texts of 256 tokens takes about 2 s on one slow core
MAX_BACKOFF_S = 30.0

_ROOT = str(Path(__file__).resolve().parent.parent)  # where the child finds this package
_TROUBLE = (OSError, EOFError, TimeoutError, ValueError, msgspec.MsgspecError)


class ProcessBackend:
    """A `Backend` over one child process with one thread. A dead or hung child is replaced; meanwhile `run` raises.

    `model` is "sentences" or "pairs" (`embedder_child`), `python` the interpreter; `niceness` lowers the child's
    priority, so that embedding yields to the engine.
    """

    def __init__(
        self, spec: EmbedderSpec, *, model: str = "sentences", python: str = sys.executable, niceness: int = 0
    ) -> None:
        self._spec, self._model, self._python, self._niceness = spec, model, python, niceness
        self._process: Process | None = None
        self._dims = 0
        self._number = 0
        self._restart: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> int:
        self._process = await self._spawn()
        return self._dims

    async def run(self, texts: Sequence[str]) -> list[Embedding]:
        process = self._process
        if process is None:
            raise EmbedderUnavailable("the embedder's process is starting")
        self._number += 1
        try:
            async with asyncio.timeout(RUN_TIMEOUT_S):
                result = await self._exchange(process, Batch(self._number, list(texts)))
        except _TROUBLE as exc:
            await self._replace(process)
            raise EmbedderUnavailable(f"the embedder's process failed: {type(exc).__name__}") from exc
        except asyncio.CancelledError:  # its answer would be taken for the next batch's
            await self._end(process)
            self._process = None
            raise
        if isinstance(result, Failure):
            raise EmbedderUnavailable(result.message)
        return unpack_embeddings(result.vectors, self._dims, result.num_tokens, result.flags)

    async def close(self) -> None:
        self._closed = True
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)
        process, self._process = self._process, None
        if process is not None:
            await self._end(process)

    async def _spawn(self) -> Process:
        # One thread; set before the child imports torch, as OpenMP reads it once.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))
        command = [self._python, "-m", "cache.embedder_child", self._model, self._spec.path]
        if self._niceness:
            command = ["nice", "-n", str(self._niceness), *command]
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                hello = await _read(process)
        except _TROUBLE as exc:
            await self._end(process)
            raise EmbedderNotStarted(f"the embedder's process did not start: {type(exc).__name__}") from exc
        except asyncio.CancelledError:
            await self._end(process)
            raise
        if not isinstance(hello, Hello):
            await self._end(process)
            raise EmbedderUnavailable(hello.message if isinstance(hello, Failure) else "the embedder spoke out of turn")
        self._dims = hello.dims
        return process

    async def _exchange(self, process: Process, batch: Batch) -> Result | Failure:
        assert process.stdin is not None
        process.stdin.write(frame(batch))
        await process.stdin.drain()
        answer = await _read(process)
        if isinstance(answer, Hello) or answer.number != batch.number:
            raise ValueError("the embedder answered another batch")
        return answer

    async def _replace(self, process: Process) -> None:
        await self._end(process)
        if self._process is process:
            self._process = None
            if self._closed:
                return
            self._restart = asyncio.create_task(self._respawn(), name="embedder-restart")

    async def _respawn(self) -> None:
        """Ended by `close`."""

        async def spawn() -> None:
            self._process = await self._spawn()

        await try_until_done(
            spawn, EmbedderUnavailable, "another embedder's process", backoff_s=0.5, max_backoff_s=MAX_BACKOFF_S
        )

    async def _end(self, process: Process) -> None:
        """Closes its stdin, which ends it; kills it if that does not help within a second."""
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(1.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _read(process: Process) -> Hello | Result | Failure:
    """Raises: asyncio.IncompleteReadError (an EOFError), ValueError, msgspec.DecodeError."""
    assert process.stdout is not None
    header = await process.stdout.readexactly(4)
    return decode_from_child(await process.stdout.readexactly(frame_length(header)))
