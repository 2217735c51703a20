"""Names and codes: a capitalised word, an acronym, letters mixed with digits."""

from __future__ import annotations

from cache.guards.chinese import HanQuestion
from cache.guards.difference import difference
from cache.guards.english import Question


def english(a: Question, b: Question) -> bool:
    """Whether a name or code stands on one side only. Letter case does not matter for the comparison itself."""
    leftover = difference(a, b)
    return any(token.code or token.capital for token in (*leftover.left, *leftover.right))


def chinese(a: HanQuestion, b: HanQuestion) -> bool:
    """Whether a run of Latin letters and digits stands on one side only; names in Han characters are `wording`'s."""
    return sorted(a.codes) != sorted(b.codes)
