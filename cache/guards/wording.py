"""Swapped or added content words: whatever no other guard could name is another subject, or a narrower one."""

from __future__ import annotations

from cache.guards.chinese import HanQuestion
from cache.guards.difference import difference
from cache.guards.english import Question


def english(a: Question, b: Question) -> bool:
    """Whether a content word of one side has no counterpart on the other.

    One exchanged word is as often a synonym as another subject ("declined" for "rejected" or for "delayed"), and no
    cosine tells which, so none is let through.
    """
    leftover = difference(a, b)
    return bool(leftover.left or leftover.right)


def chinese(a: HanQuestion, b: HanQuestion) -> bool:
    """Whether a character that carries meaning stands on one side only."""
    return sorted(a.core) != sorted(b.core)
