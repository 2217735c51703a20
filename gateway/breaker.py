"""A circuit breaker per upstream: after some failures in a row it is not asked for a while, then one probe decides."""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES_TO_OPEN = 5
OPEN_S = 5.0
MAX_OPEN_S = 60.0


class CircuitBreaker:
    """Closed: everything passes. Open: nothing does. Half-open: one probe at a time.

    Every failed probe doubles the time until the next, up to MAX_OPEN_S. Only failures that say something of the
    upstream's health count: timeouts, refused connections, 5xx; a 400 is the caller's.
    """

    def __init__(
        self,
        *,
        failures_to_open: int = FAILURES_TO_OPEN,
        open_s: float = OPEN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures_to_open = failures_to_open
        self._first_open_s = open_s
        self._clock = clock
        self._failures = 0
        self._open_s = open_s
        self._retry_at: float | None = None
        self._probing = False

    @property
    def state(self) -> str:
        """closed, open or half_open."""
        if self._retry_at is None:
            return "closed"
        return "half_open" if self._clock() >= self._retry_at else "open"

    def allows(self) -> bool:
        """True when a request may go out now. In the half-open state it takes the probe's place: report its end."""
        if self._retry_at is None:
            return True
        if self._probing or self._clock() < self._retry_at:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        """The upstream answered (an answer that refuses the caller's input counts)."""
        self._failures, self._retry_at, self._probing = 0, None, False
        self._open_s = self._first_open_s

    def failed(self) -> None:
        """The upstream did not answer as it should."""
        self._failures += 1
        if self._probing:
            self._open_s = min(self._open_s * 2, MAX_OPEN_S)
        elif self._failures < self._failures_to_open:
            return
        self._probing = False
        self._retry_at = self._clock() + self._open_s

    def abandoned(self) -> None:
        """The request ended without saying anything of the upstream (its client left): frees the probe's place."""
        self._probing = False

    @property
    def retry_after_s(self) -> float:
        """Seconds until the next probe; 0 when closed."""
        return max(0.0, self._retry_at - self._clock()) if self._retry_at is not None else 0.0
