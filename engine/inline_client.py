"""`InlineClient`: the engine on a thread of this process. The default with one worker on a CPU.

The thread steps the core and hands each step's outputs to the event loop in one call; text is made there. Commands go
the other way through a queue that is read between steps, so a request or an abort takes effect within one step.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from engine.config import EngineConfig
from engine.core import AcceptedRequest, EngineCore
from engine.core_output import CoreOutput
from engine.errors import EngineError, EngineUnavailable, InvalidRequest
from engine.output_processor import OutputProcessor
from engine.streams import RequestStreams
from engine.tokenizer import Tokenizer
from engine.types import Delta, EngineHealth, EngineRequest, EngineStats, ModelInfo

logger = logging.getLogger(__name__)

Command = Callable[[EngineCore], list[CoreOutput] | None]


class InlineClient:
    """An `EngineClient`. `build` makes the core on the engine's thread (tests pass their own)."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        build: Callable[[EngineConfig], EngineCore] | None = None,
        tokenizer: Tokenizer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._build = build or _build_core
        self._tokenizer = tokenizer
        self._clock = clock
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._core: EngineCore | None = None
        self._streams: RequestStreams | None = None
        self._status = "starting"
        self._detail = ""
        self._turned_at = clock()
        self._stepping = False

    @property
    def model(self) -> ModelInfo:
        return self._ready().info

    async def start(self) -> None:
        """Raises: ModelLoadError and whatever else building the core raises."""
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[EngineCore] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="weir-engine", daemon=True)
        self._thread.start()
        self._core = await ready
        tokenizer = self._tokenizer
        if tokenizer is None:
            tokenizer = await asyncio.to_thread(Tokenizer.from_folder, self._tokenizer_folder())
        self._streams = RequestStreams(OutputProcessor(tokenizer, self._stop_sequence))
        self._status = "ready"

    async def generate(self, request: EngineRequest) -> AsyncIterator[Delta]:
        core = self._ready()
        assert self._streams is not None
        if self._status == "draining":
            raise EngineUnavailable("the engine is draining and takes no new requests")
        if request.request_id in self._streams:
            raise InvalidRequest(f"request id {request.request_id!r} is already in use", param="request_id")
        accepted = core.accept(request)
        stream = self._streams.open(request)
        self._commands.put(lambda c: _add(c, accepted))
        finished = False
        try:
            async for delta in stream:
                finished = delta.last
                yield delta
        finally:
            self._streams.close(request.request_id)
            if not finished:
                self._commands.put(lambda c: _discard(c.abort(request.request_id)))

    async def abort(self, request_id: str) -> None:
        self._commands.put(lambda core: core.abort(request_id))

    async def stats(self) -> EngineStats:
        return self._ready().stats()

    async def health(self) -> EngineHealth:
        age = self._clock() - self._turned_at if self._stepping else 0.0
        if self._status in ("ready", "draining") and age > self._config.watchdog_timeout_s:
            return EngineHealth(status="hung", detail=f"a step has run for {age:.0f} s", last_step_age_s=age)
        return EngineHealth(status=self._status, detail=self._detail, last_step_age_s=age)

    async def drain(self, timeout_s: float) -> None:
        self._status = "draining"
        if self._streams is not None:
            await self._streams.wait_empty(timeout_s)

    async def close(self) -> None:
        if self._status == "dead":
            return
        self._status, self._detail = "dead", "the engine was closed"
        self._commands.put(None)
        if self._streams is not None:
            self._streams.fail_all(EngineUnavailable("the engine was closed"))
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 30.0)

    # -- the engine's thread -----------------------------------------------------------------------------------

    def _run(self, ready: asyncio.Future[EngineCore]) -> None:
        assert self._loop is not None
        try:
            core = self._build(self._config)
        except BaseException as exc:  # noqa: BLE001 - start() raises it
            self._post(_resolve, ready, None, exc)
            return
        self._post(_resolve, ready, core, None)
        try:
            while self._turn(core):
                pass
        except Exception as exc:  # the loop is lost: health says so, open streams fail
            logger.exception("the engine's loop ended")
            self._status, self._detail = "dead", f"{type(exc).__name__}: {exc}"
            self._post(self._fail_streams, EngineUnavailable(f"the engine stopped: {type(exc).__name__}"))

    def _turn(self, core: EngineCore) -> bool:
        """Commands, then one step. Returns False when the client is closed."""
        outputs: list[CoreOutput] = []
        while True:
            try:
                # With nothing to do the thread sleeps here until the next command.
                command = self._commands.get(block=not core.has_work and not outputs)
            except queue.Empty:
                break
            if command is None:
                return False
            outputs += command(core) or []
        self._turned_at, self._stepping = self._clock(), True
        if core.has_work:
            outputs += core.step()
        self._stepping = False
        if outputs:
            self._post(self._deliver, outputs)
        return True

    def _post(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    # -- the event loop ----------------------------------------------------------------------------------------

    def _deliver(self, outputs: list[CoreOutput]) -> None:
        if self._streams is not None:
            self._streams.deliver(outputs)

    def _fail_streams(self, error: EngineError) -> None:
        if self._streams is not None:
            self._streams.fail_all(error)

    def _stop_sequence(self, request_id: str, index: int) -> None:
        self._commands.put(lambda core: core.stop_sequence(request_id, index))

    def _ready(self) -> EngineCore:
        if self._core is None or self._streams is None or self._status in ("starting", "dead"):
            raise EngineUnavailable(f"the engine is {self._status}" + (f": {self._detail}" if self._detail else ""))
        return self._core

    def _tokenizer_folder(self) -> Path:
        assert self._core is not None
        return Path(self._config.tokenizer or self._core.info.path)


def _build_core(config: EngineConfig) -> EngineCore:
    from engine.startup import build_core

    return build_core(config)


def _add(core: EngineCore, accepted: AcceptedRequest) -> None:
    core.add(accepted)


def _discard(_outputs: list[CoreOutput]) -> None:
    """The stream that would have read them is closed."""


def _resolve(future: asyncio.Future[EngineCore], core: EngineCore | None, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        assert core is not None
        future.set_result(core)
