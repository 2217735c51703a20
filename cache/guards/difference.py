"""Which words of two English questions correspond, and which are left over on either side."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from cache.guards.english import Question, Token
from cache.guards.units import canonical_unit


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """`left`, `right`: content words without a counterpart; `pairs`: positions of those with one, by the left's."""

    left: tuple[Token, ...]
    right: tuple[Token, ...]
    pairs: tuple[tuple[int, int], ...]


@lru_cache(maxsize=1024)
def difference(a: Question, b: Question) -> Difference:
    """Matches words that are equal but for inflection, spelling of a unit, a joined writing, or two swapped letters."""
    pairs: list[tuple[int, int]] = []
    open_right = list(range(len(b.content)))
    open_left: list[int] = []
    for position, token in enumerate(a.content):
        match = next((other for other in open_right if _same(token, b.content[other])), None)
        if match is None:
            open_left.append(position)
        else:
            open_right.remove(match)
            pairs.append((position, match))
    left = [a.content[position] for position in open_left]
    right = [b.content[position] for position in open_right]
    if left and right and _joined(left) == _joined(right):  # Wi-Fi and WiFi, e-mail and email
        left, right = [], []
    return Difference(left=tuple(left), right=tuple(right), pairs=tuple(pairs))


def _same(a: Token, b: Token) -> bool:
    if a.stem == b.stem:
        return True
    if a.number or b.number:
        return False
    if canonical_unit(a.text) is not None and canonical_unit(a.text) == canonical_unit(b.text):
        return True
    return not (a.code or b.code) and _swapped_letters(a.text.lower(), b.text.lower())


def _swapped_letters(a: str, b: str) -> bool:
    """A slip of the fingers: two neighbouring letters inside a word of five or more change places."""
    if len(a) != len(b) or len(a) < 5 or a == b:
        return False
    spots = [position for position in range(len(a)) if a[position] != b[position]]
    if len(spots) != 2 or spots[1] != spots[0] + 1:
        return False
    first, second = spots
    return a[first] == b[second] and a[second] == b[first]


def _joined(tokens: list[Token]) -> str:
    return "".join(token.text.lower() for token in tokens)
