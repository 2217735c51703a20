"""Opposites that show in the form of the words: an affix turns one into the other."""

from __future__ import annotations

from cache.guards.difference import difference
from cache.guards.english import Question
from cache.guards.lists import words

_PREFIXES = words("un in im il ir non dis de mis anti counter re pre post over under sub super up down out")
_SUFFIXES = (("ful", "less"), ("er", "ee"), ("or", "ee"))


def english(a: Question, b: Question) -> bool:
    """Whether a word of one side is a word of the other with a prefix or the opposite suffix: legal and illegal."""
    leftover = difference(a, b)
    return any(_opposed(x.text.lower(), y.text.lower()) for x in leftover.left for y in leftover.right)


def _opposed(x: str, y: str) -> bool:
    short, long = sorted((x, y), key=len)
    if len(short) >= 3 and long.endswith(short) and long[: -len(short)] in _PREFIXES:
        return True
    # enable and disable, import and export, increase and decrease: two prefixes before one root
    root = _common_ending(x, y)
    heads = x[: len(x) - len(root)], y[: len(y) - len(root)]
    if len(root) >= 4 and all(1 < len(head) <= 3 for head in heads):
        return True
    return any(
        one.endswith(ending) and other == one.removesuffix(ending) + opposite
        for one, other in ((x, y), (y, x))
        for ending, opposite in _SUFFIXES
    )


def _common_ending(x: str, y: str) -> str:
    length = 0
    while length < min(len(x), len(y)) and x[-1 - length] == y[-1 - length]:
        length += 1
    return x[len(x) - length :]
