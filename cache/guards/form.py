"""What is asked about the same words: how or whether, where or when, then or now, I or you, may or must."""

from __future__ import annotations

from cache.guards.chinese import HanQuestion
from cache.guards.english import Question
from cache.guards.lists import words

_DUTY = words("must shall should ought need")
# Questions without a question form ("the price of tea", "reset a password") may ask what or how, never whether or why.
_ALIKE = ({"may", "polar"}, {"any", "what"}, {"any", "how"})


def english(a: Question, b: Question) -> bool:
    """Whether both are other kinds of question, in another tense, about another person, or of another modality."""
    kinds = {a.kind, b.kind}
    if len(kinds) > 1 and not any(kinds <= alike for alike in _ALIKE):
        return True
    if _other_tense(a, b) or a.links != b.links:
        return True
    if kinds <= {"polar", "may", "what"} and bool(a.modals & _DUTY) != bool(b.modals & _DUTY):
        return True
    return _other_persons(a.persons, b.persons)


def _other_persons(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether another third person is meant, I stands for you, or both changed parts ("can I call you")."""
    differing = set(a) ^ set(b)
    if differing - {"first", "second"} or differing == {"first", "second"}:
        return True
    return {"first", "second"} <= set(a) & set(b) and [p for p in a if p in b] != [p for p in b if p in a]


def _other_tense(a: Question, b: Question) -> bool:
    """Whether one speaks of the past or of what will be, and the other says that it speaks of another time."""
    if (_past(a) and _present(b)) or (_present(a) and _past(b)):
        return True
    return (_future(a) and (b.past or b.present) and not _future(b)) or (
        _future(b) and (a.past or a.present) and not _future(a)
    )


def _future(question: Question) -> bool:
    return "will" in question.modals


def _past(question: Question) -> bool:
    return question.past and not question.present


def _present(question: Question) -> bool:
    return question.present and not question.past


def chinese(a: HanQuestion, b: HanQuestion) -> bool:
    """Whether both ask by other question words: 怎么 and 为什么, 谁 and 哪里."""
    return bool(a.asks) and bool(b.asks) and a.asks != b.asks
