"""Word lists written as lines of words."""

from __future__ import annotations


def listed(text: str) -> list[str]:
    """The words of a line, in order."""
    return text.split()


def words(text: str) -> frozenset[str]:
    """The words of a line as a set."""
    return frozenset(text.split())
