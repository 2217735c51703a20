"""Numbers and ordinals: both questions must name the same ones."""

from __future__ import annotations

from collections import Counter

from cache.guards.chinese import HanQuestion
from cache.guards.english import Question


def english(a: Question, b: Question) -> bool:
    """Whether a number stands on one side only: order 10482 is not order 10483, the first not the last."""
    return _numbers(a) != _numbers(b)


def _numbers(question: Question) -> Counter[str]:
    return Counter(token.stem for token in question.content if token.number)


def chinese(a: HanQuestion, b: HanQuestion) -> bool:
    """As `english`; 十五 and 15 are the same number, 第三 and 三 are not."""
    return Counter(a.numbers) != Counter(b.numbers)
