"""`Upstream`: whatever generates. `local` is our engine; `openai` is any OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from gateway.calls import Call, Counts, Piece


class UpstreamError(Exception):
    """An upstream failed. `retryable`: another try, or another upstream, may do better.

    `status` is the HTTP status it gave, None where there was none (connection refused, timeout). `retry_after_s` is
    what it asked for. The message names the upstream, never its key or address.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        status: int | None = None,
        retry_after_s: float | None = None,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.status = status
        self.retry_after_s = retry_after_s
        self.code = code
        self.param = param


class Progress(msgspec.Struct):
    """One step of a generation: pieces of any choices, and the counts so far."""

    pieces: list[Piece]
    counts: Counts


class Upstream(Protocol):
    """One place that can serve one model."""

    @property
    def name(self) -> str:
        """The operator's name for it; `local` for our engine."""

    @property
    def model(self) -> str:
        """The model's name in the price list and the ledger."""

    @property
    def revision(self) -> str:
        """What determines its numerics: part of every cache key and of `system_fingerprint`."""

    def generate(self, call: Call, attempt: int) -> AsyncIterator[Progress]:
        """Generates until every choice has finished. Closing the iterator aborts.

        Raises: UpstreamError; the engine's InvalidRequest, QueueFull, RequestFailed, EngineUnavailable.
        """

    async def close(self) -> None:
        """Frees connections. Closing twice is harmless."""
