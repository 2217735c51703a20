"""Negation: a question and its denial are two questions."""

from __future__ import annotations

from cache.guards.chinese import HanQuestion
from cache.guards.english import Question


def english(a: Question, b: Question) -> bool:
    """Whether one side denies more often than the other: is and is not, with and without."""
    return a.negations != b.negations


def chinese(a: HanQuestion, b: HanQuestion) -> bool:
    """As `english`; forms that ask by denying (能不能, 有没有, 是不是) deny nothing and are gone by then."""
    return a.negations != b.negations
