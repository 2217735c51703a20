"""`ChildClient`: the engine as a supervised process behind a Unix socket. Imports no torch.

One worker (`spawn=True`) starts and supervises the process; others connect to the same socket. When the engine dies
its open requests fail with a clear error, it is started again with back-off, and meanwhile health is not ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.errors import EngineUnavailable, InvalidRequest, ModelLoadError
from engine.output_processor import OutputProcessor
from engine.streams import RequestStreams
from engine.tokenizer import Tokenizer
from engine.types import Delta, EngineHealth, EngineRequest, EngineStats, ModelInfo
from engine.wire import (
    Abort,
    Ask,
    FromEngine,
    Generate,
    Outputs,
    Ready,
    Refused,
    Report,
    StopSequence,
    ToEngine,
    frame,
    read_from_engine,
)

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
# A process that lived this long was healthy: its next start waits only the first back-off.
STABLE_AFTER_S = 60.0
PING_INTERVAL_S = 1.0
# Without an answer for this long the process is hung (stopped, swapping, its loop blocked).
SILENT_AFTER_S = 4.0
# Health says "hung" after one to six times the watchdog's setting; killing what might yet go on waits for longer.
KILLED_AFTER = 8.0
CONNECT_POLL_S = 0.05
ROOT = str(Path(__file__).resolve().parents[1])  # the child must run this code, wherever it is started


class ChildClient:
    """An `EngineClient`.

    Args: socket_path on a local file system (at most 100 bytes); spawn: whether this client owns the process;
    command: the process's command line before the socket path (tests pass their own); clock: seconds, monotonic.
    """

    def __init__(
        self,
        config: EngineConfig,
        socket_path: Path,
        *,
        spawn: bool = True,
        command: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._socket_path = socket_path
        self._spawn = spawn
        self._command = tuple(command or (sys.executable, "-m", "engine.child_process"))
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._streams: RequestStreams | None = None
        self._model: ModelInfo | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._status, self._detail = "starting", ""
        self._last_words: deque[str] = deque(maxlen=20)
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Report]] = {}
        self._heard_at = clock()
        self._report_health = EngineHealth(status="starting")
        self.num_starts = 0

    @property
    def model(self) -> ModelInfo:
        if self._model is None:
            raise EngineUnavailable(f"the engine is {self._status}")
        return self._model

    @property
    def pid(self) -> int | None:
        """The engine's process id, if this client started it and it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Raises: ModelLoadError with the process's last words when it does not come up."""
        try:
            reader = await self._connect()
        except BaseException:
            await self._lose("it did not start")
            raise
        self._supervisor = asyncio.create_task(self._supervise(reader))

    async def generate(self, request: EngineRequest) -> AsyncIterator[Delta]:
        streams = self._ready()
        if request.request_id in streams:
            raise InvalidRequest(f"request id {request.request_id!r} is already in use", param="request_id")
        stream = streams.open(request)
        finished = False
        try:
            self._send(Generate(request))
            async for delta in stream:
                finished = delta.last
                yield delta
        finally:
            streams.close(request.request_id)
            if not finished:
                await self.abort(request.request_id)

    async def abort(self, request_id: str) -> None:
        if self._writer is not None:
            self._send(Abort(request_id))

    async def stats(self) -> EngineStats:
        """Raises: EngineUnavailable."""
        self._ready()
        return (await self._ask()).stats

    async def health(self) -> EngineHealth:
        """Answers at once, from what was last heard: a hung engine must not hang its health check."""
        silent = self._clock() - self._heard_at
        if self._status in ("ready", "draining"):
            if silent > SILENT_AFTER_S:
                return EngineHealth(status="hung", detail=f"no answer for {silent:.0f} s", last_step_age_s=silent)
            if self._report_health.status in ("hung", "dead"):
                return self._report_health
        return EngineHealth(
            status=self._status, detail=self._detail, last_step_age_s=self._report_health.last_step_age_s
        )

    async def drain(self, timeout_s: float) -> None:
        if self._streams is not None and self._status == "ready":
            self._status = "draining"
            await self._streams.wait_empty(timeout_s)

    async def close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        await self._lose("the engine was closed")
        self._status, self._detail = "dead", "the engine was closed"

    # -- the process and the connection ------------------------------------------------------------------------

    async def _connect(self) -> asyncio.StreamReader:
        """Starts the process if it is ours, waits for its socket, reads who it is. Raises: ModelLoadError."""
        self._status = "starting"
        if self._spawn:
            await self._start_process()
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_unix_connection(self._socket_path)
                break
            if self._process is not None and self._process.returncode is not None:
                await asyncio.sleep(CONNECT_POLL_S)  # lets the last words arrive
                raise ModelLoadError(self._explain())
            await asyncio.sleep(CONNECT_POLL_S)
        ready = await read_from_engine(reader)
        if not isinstance(ready, Ready):
            raise ModelLoadError(f"{self._socket_path} is not a Weir engine")
        if self._streams is None:
            folder = Path(self._config.tokenizer or ready.model.path)
            tokenizer = await asyncio.to_thread(Tokenizer.from_folder, folder)
            self._streams = RequestStreams(OutputProcessor(tokenizer, self._stop_sequence))
        self._model, self._writer = ready.model, writer
        self._heard_at, self._status, self._detail = self._clock(), "ready", ""
        return reader

    async def _start_process(self) -> None:
        await asyncio.to_thread(_clear_socket, self._socket_path)
        self._last_words.clear()
        self.num_starts += 1
        search = os.pathsep.join(part for part in (ROOT, os.environ.get("PYTHONPATH")) if part)
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            str(self._socket_path),
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Passive: OpenMP threads that wait by spinning burn the core that the thread they wait for needs.
            env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": search},
        )
        assert self._process.stdin is not None, "a pipe was asked for"
        # stdin stays open: its end tells the child that this process is gone.
        self._process.stdin.write(msgspec.json.encode(self._config) + b"\n")
        await self._process.stdin.drain()
        self._listener = asyncio.create_task(self._listen(self._process))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """The process's log goes into ours; its last lines explain a failed start."""
        assert process.stderr is not None, "a pipe was asked for"
        while line := await process.stderr.readline():
            text = line.decode("utf-8", "replace").rstrip()
            self._last_words.append(text)
            logger.info("%s", text)

    async def _supervise(self, reader: asyncio.StreamReader) -> None:
        """Reads until the connection ends, then starts again, for ever."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            connected_at = self._clock()
            pinger = asyncio.create_task(self._ping())
            try:
                while True:
                    self._receive(await read_from_engine(reader))
            except (asyncio.IncompleteReadError, ConnectionError, ValueError) as exc:
                logger.warning("the engine's connection ended: %s", exc)
            finally:
                pinger.cancel()
            await self._lose()
            if self._clock() - connected_at > STABLE_AFTER_S:
                backoff_s = FIRST_BACKOFF_S
            while True:
                await asyncio.sleep(backoff_s)
                backoff_s = min(MAX_BACKOFF_S, backoff_s * 2)
                try:
                    reader = await self._connect()
                    break
                except (ModelLoadError, OSError, asyncio.IncompleteReadError) as exc:
                    self._detail = str(exc)
                    logger.warning("the engine did not start again: %s", exc)

    async def _ping(self) -> None:
        """Asks how the engine is, every second; a hung process of ours is killed, so that it is started again."""
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            if self._writer is None:
                return
            self._send(Ask(next(self._numbers)))
            silent = self._clock() - self._heard_at
            age = self._report_health.last_step_age_s
            if max(silent, age) > KILLED_AFTER * self._config.watchdog_timeout_s and self.pid is not None:
                logger.error("the engine hangs (silent %.0f s, no progress for %.0f s): killed", silent, age)
                assert self._process is not None, "it has a pid"
                self._process.kill()

    async def _lose(self, why: str | None = None) -> None:
        """The connection is gone: the process is made to end, open requests fail with its last words."""
        if self._process is not None:
            if self._process.returncode is None:
                with contextlib.suppress(TimeoutError):  # it may be ending by itself, with a status worth telling
                    async with asyncio.timeout(0.2 if why is None else 0):
                        await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
            await self._listener
        why = why or self._explain()
        self._process = None
        if self._status != "draining":
            self._status = "starting"
        self._detail = why
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        error = EngineUnavailable(f"the engine was lost: {why}")
        for future in self._asked.values():
            if not future.done():
                future.set_exception(error)
        self._asked.clear()
        if self._streams is not None:
            self._streams.fail_all(error)

    def _explain(self) -> str:
        code = self._process.returncode if self._process is not None else None
        words = self._last_words[-1] if self._last_words else "it said nothing"
        return f"the engine's process ended{'' if code is None else f' with status {code}'}: {words}"

    # -- messages ----------------------------------------------------------------------------------------------

    def _send(self, message: ToEngine) -> None:
        if self._writer is None:
            raise EngineUnavailable(f"the engine is {self._status}: {self._detail}")
        self._writer.write(frame(message))

    def _receive(self, message: FromEngine) -> None:
        self._heard_at = self._clock()
        assert self._streams is not None, "made when connecting"
        match message:
            case Outputs(outputs):
                self._streams.deliver(outputs)
            case Refused():
                self._streams.fail(message.request_id, message.error())
            case Report():
                self._report_health = message.health
                future = self._asked.pop(message.number, None)
                if future is not None and not future.done():
                    future.set_result(message)
            case Ready():
                self._model = message.model

    async def _ask(self) -> Report:
        number = next(self._numbers)
        future: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        self._send(Ask(number))
        try:
            async with asyncio.timeout(SILENT_AFTER_S):
                return await future
        except TimeoutError as exc:
            raise EngineUnavailable("the engine does not answer") from exc
        finally:
            self._asked.pop(number, None)

    def _stop_sequence(self, request_id: str, index: int) -> None:
        with contextlib.suppress(EngineUnavailable):
            self._send(StopSequence(request_id, index))

    def _ready(self) -> RequestStreams:
        if self._status != "ready" or self._streams is None:
            detail = f": {self._detail}" if self._detail else ""
            suffix = " and takes no new requests" if self._status == "draining" else ""
            raise EngineUnavailable(f"the engine is {self._status}{suffix}{detail}")
        return self._streams


def _clear_socket(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
