"""Signs that are no words: operators, currencies, emoji. Is 3 < 5 is not is 3 > 5, though every word is the same."""

from __future__ import annotations

import re
import unicodedata

_WRITTEN = frozenset("*/\\^%&@#=|~<>{}[]_")
_MINUS = re.compile(r"(?<!\w)-(?=\s*\d)|(?<=\d)\s+-\s+")
_QUOTES = frozenset("`´’‘")  # marks of quotation and apostrophes


def signs(text: str) -> list[str]:
    """All signs of a text, sorted."""
    found = [
        char for char in text if (char in _WRITTEN or unicodedata.category(char)[0] == "S") and char not in _QUOTES
    ]
    return sorted(found + ["-"] * len(_MINUS.findall(text)))


def differ(a: str, b: str) -> bool:
    """Whether a sign stands on one side only."""
    return signs(a) != signs(b)
