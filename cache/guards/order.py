"""Word order and direction: from London to Paris is not from Paris to London, though every word is the same."""

from __future__ import annotations

from cache.guards.chinese import HanQuestion
from cache.guards.difference import difference
from cache.guards.english import Question
from cache.guards.english_words import SUBORDINATORS
from cache.guards.lists import words

# Prepositions that often stand for one another; all others say that a word plays another part.
_ALIKE = (words("of for about in on at"), words("with by via"), words("to into onto towards toward"))


def english(a: Question, b: Question) -> bool:
    """Whether the same words stand in another order, or a word went from source (from, by) to goal (to, into).

    One move is no change: a block that begins with a preposition, and keeps it, may stand elsewhere ("On 3 March,
    what ..."). A block that lost its preposition took another part: "capital of France", "France the capital of".
    """
    pairs = difference(a, b).pairs
    for left, right in pairs:
        governors = a.content[left].governor, b.content[right].governor
        if _turned(*governors) or (a.kind != "many" and _lost(*governors)):
            return True
    targets = [right for _, right in pairs]
    if targets == sorted(targets):
        return False
    blocks = moved_blocks(targets)
    if blocks is None:
        return True
    moved = pairs[blocks[0] : blocks[2]]
    if any(bool(a.content[left].governor) != bool(b.content[right].governor) for left, right in moved):
        return True
    return not any(a.content[pairs[position][0]].governor for position in blocks[:2])


def _lost(one: str, other: str) -> bool:
    """Whether a preposition stands on one side only: what is in chocolate, and what is chocolate.

    Not "of", which two nouns side by side do without, nor the "to" of an infinitive; nor any after "how many" ("are in
    the system", "does the system have").
    """
    return bool(one) != bool(other) and not {one, other} & {"of", "to", *SUBORDINATORS}


def _turned(one: str, other: str) -> bool:
    """Whether two prepositions before the same word give it different parts."""
    if one == other or not (one and other):
        return False
    return not any(one in alike and other in alike for alike in _ALIKE)


def moved_blocks(targets: list[int]) -> tuple[int, int, int] | None:
    """Where two neighbouring blocks changed places: (start, middle, end), if that alone explains the order.

    `targets`: distinct numbers; sorted means unmoved.
    """
    ranks = {value: rank for rank, value in enumerate(sorted(targets))}
    order = [ranks[value] for value in targets]
    start = next(position for position, rank in enumerate(order) if rank != position)
    end = max(position for position, rank in enumerate(order) if rank != position) + 1
    middle = order.index(start)
    moved = order[middle:end] + order[start:middle]
    return (start, middle, end) if moved == list(range(start, end)) else None


def chinese(a: HanQuestion, b: HanQuestion) -> bool:
    """Whether the same characters stand in another order that one move does not explain.

    Two neighbouring blocks may change places (平板的儿童锁怎么打开, 怎么打开平板的儿童锁): that never exchanges the
    two sides of 从…到…, 把…转成… or 比, as a word stands between them.
    """
    if a.core == b.core or sorted(a.core) != sorted(b.core):
        return False
    open_places: dict[str, list[int]] = {}
    for position, char in enumerate(b.core):
        open_places.setdefault(char, []).append(position)
    targets = [open_places[char].pop(0) for char in a.core]
    return targets != sorted(targets) and moved_blocks(targets) is None
