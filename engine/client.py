"""`EngineClient`: the one door to the engine. Two implementations over the same `EngineCore`:
`engine/inline_client.py` (a thread of this process) and `engine/child_client.py` (a supervised process)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from engine.types import Delta, EngineHealth, EngineRequest, EngineStats, ModelInfo


class EngineClient(Protocol):
    """Generate, abort, stats, health. All methods are called from one asyncio event loop."""

    @property
    def model(self) -> ModelInfo:
        """The loaded model. Raises: EngineUnavailable before `start` returned."""

    async def start(self) -> None:
        """Loads the model and starts the loop. Raises: ModelLoadError."""

    def generate(self, request: EngineRequest) -> AsyncIterator[Delta]:
        """Deltas of all `n` sequences until the one with `last=True`. Closing the iterator aborts the request.

        Raises: InvalidRequest, QueueFull (before the first delta); RequestFailed, EngineUnavailable (any time).
        """

    async def abort(self, request_id: str) -> None:
        """Ends a request within one step; its stream gets a last delta with `FinishReason.ABORT`. Unknown ids are
        no error: aborting twice is harmless."""

    async def stats(self) -> EngineStats: ...

    async def health(self) -> EngineHealth: ...

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests and waits for the running ones, at most `timeout_s` seconds."""

    async def close(self) -> None:
        """Ends the engine; open streams raise EngineUnavailable. Closing twice is harmless."""
