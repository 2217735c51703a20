"""What is asked about the same words: how or whether, where or when, then or now, I or you, may or must."""

from __future__ import annotations

from cache.guards.chinese import HanQuestion
from cache.guards.english import Question
from cache.guards.lists import words

_DUTY = words("must shall should ought")


def english(a: Question, b: Question) -> bool:
    """Whether both are other kinds of question, in another tense, about another person, or of another modality."""
    kinds = {a.kind, b.kind}
    if len(kinds) > 1 and "any" not in kinds and kinds != {"may", "polar"}:
        return True
    if (a.past and not a.present and b.present and not b.past) or (
        b.past and not b.present and a.present and not a.past
    ):
        return True
    if len(kinds) == 1 and kinds <= {"polar", "what"} and bool(a.modals & _DUTY) != bool(b.modals & _DUTY):
        return True
    third = a.persons ^ b.persons
    return bool(third - {"first", "second"}) or (third == {"first", "second"})


def _past(question: Question) -> bool:
    return question.past and not question.present


def _present(question: Question) -> bool:
    return question.present and not question.past


def chinese(a: HanQuestion, b: HanQuestion) -> bool:
    """Whether both ask by other question words: 怎么 and 为什么, 谁 and 哪里."""
    return bool(a.asks) and bool(b.asks) and a.asks != b.asks
