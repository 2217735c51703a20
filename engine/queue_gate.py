"""`QueueGate`: refuses early what the waiting queue has no place for, from any thread, without waiting for a step."""

from __future__ import annotations

import threading

from engine.errors import QueueFull

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0


class QueueGate:
    """Counts requests and prompt tokens that wait for their first step. `leave` is called once a request, when it first
    runs or ends without having run."""

    def __init__(self, max_requests: int, max_tokens: int | None) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._requests = 0
        self._tokens = 0
        self._tokens_per_s = 0.0

    @property
    def num_waiting(self) -> int:
        return self._requests

    def enter(self, num_tokens: int) -> None:
        """Raises: QueueFull with an estimate of when the queue will have moved on."""
        with self._lock:
            if self._requests >= self._max_requests:
                raise QueueFull(
                    f"{self._requests} requests are waiting, the limit is {self._max_requests}",
                    retry_after_s=self._retry_after_s(),
                )
            if self._max_tokens is not None and self._requests and self._tokens + num_tokens > self._max_tokens:
                raise QueueFull(
                    f"{self._tokens} prompt tokens are waiting, {num_tokens} more would pass the limit of "
                    f"{self._max_tokens}",
                    retry_after_s=self._retry_after_s(),
                )
            self._requests += 1
            self._tokens += num_tokens

    def leave(self, num_tokens: int) -> None:
        with self._lock:
            self._requests -= 1
            self._tokens -= num_tokens

    def note_rate(self, num_tokens: int, seconds: float) -> None:
        """One step's tokens and seconds; the estimate follows the last few dozen steps."""
        if seconds > 0:
            rate = num_tokens / seconds
            self._tokens_per_s = rate if not self._tokens_per_s else 0.95 * self._tokens_per_s + 0.05 * rate

    def _retry_after_s(self) -> float:
        if not self._tokens_per_s:
            return MIN_RETRY_S
        return min(MAX_RETRY_S, max(MIN_RETRY_S, self._tokens / self._tokens_per_s))
