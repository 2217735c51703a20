"""The limiter in the process: warm at every request, in charge while Redis is away, each limit divided by the replicas.

Bounded: when the map is full, keys it has not met are refused rather than let through.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from billing.limits.policy import Rule

MAX_KEYS = 100_000


class LocalLimiter:
    """GCRA in floats of seconds over this process's own requests, and counts of its open ones."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic, max_keys: int = MAX_KEYS) -> None:
        self._monotonic = monotonic
        self._max_keys = max_keys
        self._tats: OrderedDict[str, float] = OrderedDict()
        self._open: dict[str, int] = {}

    def record(self, rules: Sequence[Rule], cost: int, replicas: int) -> None:
        """Count what Redis let through against this process's share, so that the limiter is warm when it takes over."""
        now = self._monotonic()
        for rule in rules:
            if rule.hard and (rule.key in self._tats or self._room(now)):
                taken = max(self._tats.get(rule.key, now), now) + cost * rule.quota.period_s * replicas / rule.hard
                self._put(rule.key, min(taken, now + rule.quota.period_s))

    def take(self, rules: Sequence[Rule], cost: int, replicas: int) -> tuple[Rule, float | None] | None:
        """All or nothing. None: taken. Else the rule that refuses and the seconds to wait (None: never)."""
        now = self._monotonic()
        tats = {}
        for rule in rules:
            if rule.hard is None:
                continue
            share = rule.hard / replicas
            if cost > share or (rule.key not in self._tats and not self._room(now)):
                return rule, None if cost > rule.hard else float(rule.quota.period_s)
            tat = max(self._tats.get(rule.key, now), now) + cost * rule.quota.period_s / share
            wait = tat - rule.quota.period_s - now
            if wait > 1e-6:
                return rule, wait
            tats[rule.key] = tat
        for key, tat in tats.items():
            self._put(key, tat)
        return None

    def give_back(self, rules: Sequence[Rule], cost: int, replicas: int) -> None:
        """Undo part of a `take`."""
        for rule in rules:
            if rule.hard and rule.key in self._tats:
                self._tats[rule.key] -= cost * rule.quota.period_s * replicas / rule.hard

    def open_lease(self, rules: Sequence[Rule], replicas: int | None) -> Rule | None:
        """Count a request as open; with `replicas`, refuse (and count nothing) where the process's share is used up."""
        if replicas is not None:
            for rule in rules:
                if rule.hard is not None and self._open.get(rule.key, 0) + 1 > rule.hard / replicas:
                    return rule
        for rule in rules:
            self._open[rule.key] = self._open.get(rule.key, 0) + 1
        return None

    def close_lease(self, rules: Sequence[Rule]) -> None:
        """The request ended."""
        for rule in rules:
            left = self._open.get(rule.key, 0) - 1
            if left > 0:
                self._open[rule.key] = left
            else:
                self._open.pop(rule.key, None)

    def _put(self, key: str, tat: float) -> None:
        self._tats[key] = tat
        self._tats.move_to_end(key)

    def _room(self, now: float) -> bool:
        while len(self._tats) >= self._max_keys:
            oldest = next(iter(self._tats))
            if self._tats[oldest] > now:
                return False
            del self._tats[oldest]
        return True
