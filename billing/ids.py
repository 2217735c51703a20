"""Identifiers: a prefix that says what it is, 48 bits of milliseconds, 80 random bits, in Crockford's base 32.

They sort by creation time, so that lists page by id without a second column.
"""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_BITS, _RANDOM_BITS = 48, 80
_DIGITS = 26


def base32(value: int, digits: int) -> str:
    """`value` in Crockford's alphabet, lower case, padded to `digits`."""
    out = []
    for _ in range(digits):
        value, low = value >> 5, value & 31
        out.append(_ALPHABET[low])
    return "".join(reversed(out))


def new_id(prefix: str, *, now_ms: int | None = None) -> str:
    """A fresh id such as `proj_06f1…`: prefix, underscore, 26 characters."""
    stamp = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) & ((1 << _TIME_BITS) - 1)
    return f"{prefix}_{base32((stamp << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS), _DIGITS)}"
