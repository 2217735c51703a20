"""Identifiers: a prefix that says what it is, 48 bits of milliseconds, 80 random bits, in Crockford's base 32.

They sort by creation time, so that lists page by id without a second column.
"""

from __future__ import annotations

import os
import threading
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]
_TIME_BITS, _RANDOM_BITS = 48, 80
_DIGITS = 26


class _Rising:
    """Hands numbers on, made larger where one would not be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def after(self, value: int) -> int:
        with self._lock:
            if value <= self._last:
                value = self._last + 1 + _random_bits(_RANDOM_BITS // 2)
            self._last = value
        return value


_rising = _Rising()


def base32(value: int, digits: int) -> str:
    """`value` in Crockford's alphabet, lower case, padded to `digits`."""
    pairs = []
    for _ in range((digits + 1) // 2):
        value, low = value >> 10, value & 1023
        pairs.append(_PAIRS[low])
    return "".join(reversed(pairs))[-digits:]


def _random_bits(count: int) -> int:
    """From the system's source; `count` a multiple of eight."""
    return int.from_bytes(os.urandom(count // 8), "big")


def new_id(prefix: str, *, now_ms: int | None = None) -> str:
    """A fresh id such as `proj_06f1…`: prefix, underscore, 26 characters; larger than every one made before it here.

    Within a millisecond (or after the clock went back) the last one's number is counted up, by a random step.
    """
    stamp = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) & ((1 << _TIME_BITS) - 1)
    value = (stamp << _RANDOM_BITS) | _random_bits(_RANDOM_BITS)
    return f"{prefix}_{base32(_rising.after(value), _DIGITS)}"
