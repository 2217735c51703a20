"""Which words of two English questions correspond, and which are left over on either side."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from cache.guards.english import Question, Token
from cache.guards.units import canonical_unit

MAX_SPELLINGS = 12  # with more words open, no spelling makes the questions one; comparing all takes their square


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """`left`, `right`: content words without a counterpart; `pairs`: positions of those with one, by the left's."""

    left: tuple[Token, ...]
    right: tuple[Token, ...]
    pairs: tuple[tuple[int, int], ...]


@lru_cache(maxsize=1024)
def difference(a: Question, b: Question) -> Difference:
    """Matches words that are equal but for inflection, spelling of a unit, a joined writing, or two swapped letters."""
    pairs: list[tuple[int, int]] = []
    places: dict[str, list[int]] = {}
    for position, token in reversed(list(enumerate(b.content))):
        places.setdefault(token.stem, []).append(position)
    open_left: list[int] = []
    for position, token in enumerate(a.content):
        if places.get(token.stem):
            pairs.append((position, places[token.stem].pop()))
        else:
            open_left.append(position)
    open_right = sorted(position for rest in places.values() for position in rest)
    if len(open_left) <= MAX_SPELLINGS and len(open_right) <= MAX_SPELLINGS:
        _match_spellings(a, b, open_left, open_right, pairs)
    left = [a.content[position] for position in open_left]
    right = [b.content[position] for position in open_right]
    if left and right and _joined(left) == _joined(right):  # Wi-Fi and WiFi, e-mail and email
        left, right = [], []
    return Difference(left=tuple(left), right=tuple(right), pairs=_in_order(a, b, pairs))


def _in_order(a: Question, b: Question, pairs: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Pairs by the left's positions; of a word that stands several times, one time misspelt, the first goes with the
    first and the second with the second."""
    for side, question in ((0, a), (1, b)):
        groups: dict[str, list[tuple[int, int]]] = {}
        for pair in pairs:
            groups.setdefault(question.content[pair[side]].stem, []).append(pair)
        pairs = [
            pair
            for group in groups.values()
            for pair in zip(sorted(left for left, _ in group), sorted(right for _, right in group), strict=True)
        ]
    return tuple(sorted(pairs))


def _match_spellings(
    a: Question, b: Question, open_left: list[int], open_right: list[int], pairs: list[tuple[int, int]]
) -> None:
    """Moves from the open positions to the pairs what is one word in two spellings."""
    for position in list(open_left):
        match = next((other for other in open_right if _same(a.content[position], b.content[other])), None)
        if match is not None:
            open_left.remove(position)
            open_right.remove(match)
            pairs.append((position, match))


def _same(a: Token, b: Token) -> bool:
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
