"""`RequestStreams`: the open requests of a client, each with the queue its caller reads deltas from."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

from engine.core_output import CoreOutput
from engine.errors import EngineError, RequestFailed
from engine.output_processor import OutputProcessor
from engine.types import Delta, EngineRequest


class RequestStreams:
    """Belongs to one event loop."""

    def __init__(self, processor: OutputProcessor) -> None:
        self._processor = processor
        self._queues: dict[str, asyncio.Queue[Delta | EngineError]] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._queues

    def open(self, request: EngineRequest) -> AsyncIterator[Delta]:
        """The deltas of a request until its last; raises what the request ended with instead of one."""
        deltas: asyncio.Queue[Delta | EngineError] = asyncio.Queue()
        self._queues[request.request_id] = deltas
        self._empty.clear()
        self._processor.add(request)
        return _read(deltas)

    def close(self, request_id: str) -> None:
        """Closing twice is harmless."""
        self._processor.forget(request_id)
        self._queues.pop(request_id, None)
        if not self._queues:
            self._empty.set()

    def deliver(self, outputs: Iterable[CoreOutput]) -> None:
        for output in outputs:
            deltas = self._queues.get(output.request_id)
            if deltas is None:
                continue
            try:
                produced = self._processor.process(output)
            except Exception as exc:  # noqa: BLE001 - one request's text must not end the others' streams
                self._processor.forget(output.request_id)
                produced = [RequestFailed(f"the output could not be processed: {type(exc).__name__}: {exc}")]
            for item in produced:
                deltas.put_nowait(item)

    def fail(self, request_id: str, error: EngineError) -> None:
        deltas = self._queues.get(request_id)
        if deltas is not None:
            deltas.put_nowait(error)

    def fail_all(self, error: EngineError) -> None:
        for deltas in self._queues.values():
            deltas.put_nowait(error)

    async def wait_empty(self, timeout_s: float) -> None:
        """Until every stream is closed, at most `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()


async def _read(deltas: asyncio.Queue[Delta | EngineError]) -> AsyncIterator[Delta]:
    while True:
        item = await deltas.get()
        if isinstance(item, EngineError):
            raise item
        yield item
        if item.last:
            return
