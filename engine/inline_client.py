"""`InlineClient`: the engine on a thread of this process. The default with one worker on a CPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.core_output import CoreOutput
from engine.engine_thread import EngineThread, build_real_core
from engine.errors import EngineUnavailable, InvalidRequest
from engine.output_processor import OutputProcessor
from engine.streams import RequestStreams
from engine.tokenizer import Tokenizer
from engine.types import Delta, EngineHealth, EngineRequest, EngineStats, ModelInfo

if TYPE_CHECKING:
    from engine.core import EngineCore


class InlineClient:
    """An `EngineClient`. Args: build makes the core on the engine's thread (tests pass their own)."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        build: Callable[[EngineConfig], EngineCore] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._thread = EngineThread(
            config, build or build_real_core, on_outputs=self._deliver, on_death=self._fail_streams, clock=clock
        )
        self._core: EngineCore | None = None
        self._streams: RequestStreams | None = None

    @property
    def model(self) -> ModelInfo:
        return self._ready()[0].info

    async def start(self) -> None:
        """Raises: ModelLoadError."""
        core = await self._thread.start()
        folder = Path(self._config.tokenizer or core.info.path)
        try:
            tokenizer = await asyncio.to_thread(Tokenizer.from_folder, folder)
        except Exception:
            await self._thread.close()
            raise
        self._streams = RequestStreams(OutputProcessor(tokenizer, self._stop_sequence))
        self._core = core

    async def generate(self, request: EngineRequest) -> AsyncIterator[Delta]:
        core, streams = self._ready()
        if self._thread.status == "draining":
            raise EngineUnavailable("the engine is draining and takes no new requests")
        if request.sampling.grammar is not None:  # may take seconds to compile: not on the event loop
            await asyncio.to_thread(core.validate, request)
        if request.request_id in streams:
            raise InvalidRequest(f"request id {request.request_id!r} is already in use", param="request_id")
        accepted = core.accept(request)
        stream = streams.open(request)
        self._thread.put(lambda c: c.add(accepted))
        finished = False
        try:
            async for delta in stream:
                finished = delta.last
                yield delta
        finally:
            streams.close(request.request_id)
            if not finished:
                await self.abort(request.request_id)

    async def abort(self, request_id: str) -> None:
        self._thread.put(lambda core: core.abort(request_id))

    async def stats(self) -> EngineStats:
        return self._ready()[0].stats()

    async def health(self) -> EngineHealth:
        return self._thread.health()

    async def drain(self, timeout_s: float) -> None:
        if self._streams is not None and self._thread.status == "ready":
            self._thread.status = "draining"
            await self._streams.wait_empty(timeout_s)

    async def close(self) -> None:
        self._fail_streams("the engine was closed")
        await self._thread.close()

    def _deliver(self, outputs: list[CoreOutput]) -> None:
        if self._streams is not None:
            self._streams.deliver(outputs)

    def _fail_streams(self, message: str) -> None:
        if self._streams is not None:
            self._streams.fail_all(EngineUnavailable(message))

    def _stop_sequence(self, request_id: str, index: int) -> None:
        self._thread.put(lambda core: core.stop_sequence(request_id, index))

    def _ready(self) -> tuple[EngineCore, RequestStreams]:
        health = self._thread.health()
        if self._core is None or self._streams is None or health.status in ("starting", "dead"):
            detail = f": {health.detail}" if health.detail else ""
            raise EngineUnavailable(f"the engine is {health.status}{detail}")
        return self._core, self._streams
