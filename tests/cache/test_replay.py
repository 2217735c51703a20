"""A hit answers as JSON or as a well-formed stream, whatever filled it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.entry import CachedAnswer, CachedChoice, CachedToolCall, CachedUsage
from cache.replay import AnswerBuilder, ReplayDelta, ToolCallDelta, replay
from tests.cache.support import answer

USAGE = CachedUsage(prompt_tokens=12, completion_tokens=3)


def rebuilt(reply: CachedAnswer) -> CachedAnswer:
    builder = AnswerBuilder(
        model=reply.model, created=reply.created, request_id=reply.request_id, num_choices=reply.num_choices
    )
    for delta in replay(reply):
        builder.add(delta)
    return builder.build(reply.usage)


def call_delta(index: int, *, arguments: str = "", **first: str) -> ReplayDelta:
    return ReplayDelta(index=0, tool_calls=(ToolCallDelta(index=index, arguments=arguments, **first),))


def test_two_parallel_calls_with_arguments_in_five_deltas_are_kept_whole() -> None:
    """Case 11: the replay kept only the first tool_calls delta."""
    builder = AnswerBuilder(model="m", created=1, request_id="r")
    builder.add(ReplayDelta(index=0, role="assistant"))
    builder.add(call_delta(0, id="c0", name="find"))
    builder.add(call_delta(0, arguments='{"fr'))
    builder.add(call_delta(1, id="c1", name="book"))
    builder.add(call_delta(1, arguments='{"seat"'))
    builder.add(call_delta(0, arguments='om": "A"}'))
    builder.add(call_delta(1, arguments=": 7"))
    builder.add(call_delta(1, arguments="}"))
    builder.add(ReplayDelta(index=0, finish_reason="tool_calls"))
    reply = builder.build(USAGE)
    calls = [(call.id, call.name, json.loads(call.arguments)) for call in reply.choices[0].tool_calls]
    assert calls == [("c0", "find", {"from": "A"}), ("c1", "book", {"seat": 7})]
    assert rebuilt(reply) == reply
    heads = [d.tool_calls[0] for d in replay(reply) if d.tool_calls and d.tool_calls[0].id is not None]
    assert [(head.index, head.id, head.name, head.arguments) for head in heads] == [
        (0, "c0", "find", ""),
        (1, "c1", "book", ""),
    ]


def test_roles_come_first_for_every_choice_and_the_finish_reason_last() -> None:
    reply = CachedAnswer(
        model="m",
        created=1,
        request_id="r",
        usage=USAGE,
        num_choices=3,
        choices=tuple(CachedChoice(index=i, content=f"answer {i}", finish_reason="stop") for i in range(3)),
    )
    deltas = list(replay(reply))
    assert [(delta.index, delta.role, delta.content) for delta in deltas[:3]] == [
        (i, "assistant", "") for i in range(3)
    ]
    assert all(delta.role is None for delta in deltas[3:])
    for index in range(3):
        own = [delta for delta in deltas if delta.index == index]
        assert [delta.finish_reason for delta in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == "stop"
        assert own[-1].content is None


def test_stored_logprobs_are_replayed_with_their_text_and_absent_ones_stay_absent() -> None:
    logprobs = [{"token": "Paris", "logprob": -0.1, "bytes": [80], "top_logprobs": []}]
    with_them = [delta for delta in replay(answer("Paris", logprobs=logprobs)) if delta.logprobs]
    assert [(delta.content, delta.logprobs) for delta in with_them] == [("Paris", logprobs)]
    assert all(delta.logprobs is None for delta in replay(answer("Paris")))


def test_a_choice_beyond_those_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="choice 1 of 1"):
        AnswerBuilder(model="m", created=1, request_id="r").add(ReplayDelta(index=1))


TEXT = st.one_of(st.none(), st.text(min_size=1, max_size=2000))
CALLS = st.lists(
    st.builds(CachedToolCall, id=st.text("abc123", min_size=1), name=st.text("xyz", min_size=1), arguments=st.text()),
    max_size=3,
).map(tuple)


@given(
    st.lists(st.tuples(st.text(max_size=2000), TEXT, CALLS), min_size=1, max_size=4),
)
def test_what_is_replayed_builds_the_same_answer_again(parts: list[tuple[str, str | None, tuple]]) -> None:
    choices = tuple(
        CachedChoice(
            index=i,
            content=text or (None if calls else ""),
            reasoning_content=reasoning,
            tool_calls=calls,
            finish_reason="stop",
        )
        for i, (text, reasoning, calls) in enumerate(parts)
    )
    reply = CachedAnswer(model="m", created=1, request_id="r", usage=USAGE, choices=choices, num_choices=len(choices))
    assert rebuilt(reply) == reply
