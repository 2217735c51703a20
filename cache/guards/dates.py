"""Dates and times: months, weekdays, parts of the day, relative days."""

from __future__ import annotations

import re

from cache.guards.chinese import HanQuestion
from cache.guards.difference import difference
from cache.guards.english import Question
from cache.guards.lists import listed, words

MONTHS = listed("january february march april may june july august september october november december")
WEEKDAYS = listed("monday tuesday wednesday thursday friday saturday sunday")
_CALENDAR = (
    frozenset([*MONTHS, *WEEKDAYS])
    | words("today tomorrow yesterday tonight morning noon afternoon evening night midnight am pm")
    | words("day days week weeks weekend weekends month months quarter quarters year years decade century hour hours")
    | words("minute minutes second seconds spring summer autumn winter daily weekly monthly yearly annually")
)
_SHORT = re.compile(r"(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tues?|wed|thu|thurs?|fri|sat|sun)")


def english(a: Question, b: Question) -> bool:
    """Whether a word of the calendar stands on one side only. Figures in dates are the number guard's."""
    leftover = difference(a, b)
    return any(is_calendar(token.text) for token in (*leftover.left, *leftover.right))


def is_calendar(word: str) -> bool:
    """Whether an English word names a time of the calendar or the clock."""
    lowered = word.lower()
    return lowered in _CALENDAR or _SHORT.fullmatch(lowered) is not None


def chinese(a: HanQuestion, b: HanQuestion) -> bool:
    """Whether both name other points or spans of time: 周一 and 周二, 明年 and 下月."""
    return sorted(a.times) != sorted(b.times)
