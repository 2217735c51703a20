"""What is worth remembering."""

from __future__ import annotations

import msgspec
import pytest

from cache.entry import CachedAnswer, CachedToolCall, why_not_stored
from cache.outcome import NotStored
from tests.cache.support import answer

CALL = CachedToolCall(id="c1", name="f", arguments="{}")


def refusal(reply: CachedAnswer, *, max_bytes: int = 10_000, allow_tool_calls: bool = False) -> NotStored | None:
    return why_not_stored(reply, max_bytes=max_bytes, allow_tool_calls=allow_tool_calls)


def test_a_whole_answer_is_stored() -> None:
    assert refusal(answer()) is None


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (answer(finish_reason="length"), NotStored.TRUNCATED),
        (answer(finish_reason="error"), NotStored.ERRORED),
        (answer(finish_reason="abort"), NotStored.ERRORED),
        (answer(finish_reason="a reason of tomorrow"), NotStored.ERRORED),
        (answer(finish_reason="content_filter"), NotStored.FILTERED),
        (answer(finish_reason=None), NotStored.INCOMPLETE),
        (msgspec.structs.replace(answer(), num_choices=2), NotStored.INCOMPLETE),
        (msgspec.structs.replace(answer(), choices=()), NotStored.INCOMPLETE),
        (answer(tool_calls=(CALL,), finish_reason="tool_calls"), NotStored.TOOL_CALLS),
        (answer(""), NotStored.EMPTY),
        (answer("x" * 10_001), NotStored.OVER_LONG),
    ],
    ids=lambda value: value.value if isinstance(value, NotStored) else "",
)
def test_half_answers_and_failures_are_never_stored(reply: CachedAnswer, reason: NotStored) -> None:
    """Case 18: truncated answers and apologies after an error were stored for good."""
    assert refusal(reply) is reason


def test_tool_calls_are_stored_where_asked_for() -> None:
    reply = answer("", tool_calls=(CALL,), finish_reason="tool_calls")
    assert refusal(reply, allow_tool_calls=True) is None


def test_one_truncated_choice_of_two_spoils_the_answer() -> None:
    both = (answer().choices[0], answer(index=1, finish_reason="length").choices[0])
    assert refusal(msgspec.structs.replace(answer(), choices=both, num_choices=2)) is NotStored.TRUNCATED


def test_an_answer_survives_the_trip_through_bytes() -> None:
    reply = answer(
        "Grüße ☃",
        tool_calls=(CALL,),
        logprobs=[{"token": "G", "logprob": -0.5, "bytes": [71], "top_logprobs": []}],
        reasoning_content="hm",
        refusal="no",
    )
    assert CachedAnswer.decode(reply.encode()) == reply
