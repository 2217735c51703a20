"""All guards in their order: the specific ones first, so that the reason says what differs."""

from __future__ import annotations

from cache.guards import (
    antonyms,
    chinese,
    dates,
    english,
    entities,
    form,
    negation,
    numbers,
    order,
    symbols,
    units,
    wording,
)
from cache.language import language_of

_ENGLISH = (
    ("number", numbers.english),
    ("negation", negation.english),
    ("date", dates.english),
    ("unit", units.english),
    ("entity", entities.english),
    ("antonym", antonyms.english),
    ("form", form.english),
    ("wording", wording.english),
    ("order", order.english),
)
_CHINESE = (
    ("number", numbers.chinese),
    ("negation", negation.chinese),
    ("date", dates.chinese),
    ("unit", units.chinese),
    ("entity", entities.chinese),
    ("form", form.chinese),
    ("wording", wording.chinese),
    ("order", order.chinese),
)


def first_refusal(a: str, b: str) -> str | None:
    """The first guard that holds two questions for different ones; None if all let them pass as one.

    Languages without guards of their own are refused ("language").
    """
    languages = {language_of(a), language_of(b)}
    if languages in ({"en"}, {"zh"}) and symbols.differ(a, b):
        return "symbol"
    if languages == {"en"}:
        left, right = english.parse(a), english.parse(b)
        return next((name for name, guard in _ENGLISH if guard(left, right)), None)
    if languages == {"zh"}:
        han_left, han_right = chinese.parse(a), chinese.parse(b)
        return next((name for name, guard in _CHINESE if guard(han_left, han_right)), None)
    return "language"
