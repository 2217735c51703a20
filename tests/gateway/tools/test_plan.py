"""What a request's tools make of an answer: constrained, read back, finished with OpenAI's word."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import msgspec
import pytest

from engine.types import SamplingParams
from gateway.calls import Choice
from gateway.errors import InvalidRequest
from gateway.schemas.chat import ChatRequest
from gateway.tools.plan import OutputPlan, plan_output
from gateway.tools.registry import FORMATS
from tests.gateway.grammar_walk import accepts, walk

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 12},
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 6}, "maxItems": 3},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "ping"}},
]
SCHEMAS = {"get_weather": WEATHER, "ping": {"type": "object", "maxProperties": 0}}


def plan(format_name: str, special_ids: dict[str, int] | None = None, **fields: Any) -> OutputPlan:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, **fields}
    return plan_output(msgspec.convert(body, ChatRequest), FORMATS[format_name], special_ids or {})


def read(made: OutputPlan, text: str, finish_reason: str = "stop") -> Choice:
    assert made.new_parser is not None
    parser, choice = made.new_parser(), Choice(index=0)
    for char in text:
        choice.add(parser.feed(char))
    choice.add(parser.finish(finish_reason))
    return choice


@pytest.mark.parametrize("format_name", sorted(FORMATS))
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_calls_are_calls_whose_arguments_validate(format_name: str, choice: Any) -> None:
    made, rng = plan(format_name, tool_choice=choice), random.Random(format_name)
    assert made.grammar is not None

    finished = [text for text in (walk(made.grammar, rng) for _ in range(12)) if text is not None]

    assert len(finished) > 6
    for text in finished:
        answer = read(made, text)
        assert answer.text == ""
        assert answer.tool_calls
        for call in answer.tool_calls:
            assert call.name is not None
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        assert answer.finish_reason == ("tool_calls" if choice == "required" else "stop")


@pytest.mark.parametrize("format_name", sorted(FORMATS))
def test_a_named_function_is_called_exactly_once(format_name: str) -> None:
    made, rng = plan(format_name, tool_choice={"type": "function", "function": {"name": "ping"}}), random.Random(1)
    assert made.grammar is not None

    for _ in range(5):
        text = walk(made.grammar, rng)
        assert text is not None
        answer = read(made, text)
        assert [(call.name, call.arguments) for call in answer.tool_calls] == [("ping", "{}")]


@pytest.mark.parametrize("format_name", sorted(FORMATS))
def test_without_parallel_calls_required_means_one(format_name: str) -> None:
    made, rng = plan(format_name, tool_choice="required", parallel_tool_calls=False), random.Random(2)
    assert made.grammar is not None

    texts = [walk(made.grammar, rng) for _ in range(6)]

    assert all(len(read(made, text).tool_calls) == 1 for text in texts if text is not None)


def test_auto_is_free_text_and_calls_are_read_out_of_it() -> None:
    made = plan("hermes")

    assert made.grammar is None
    said = read(made, "It is sunny.")
    called = read(made, '<tool_call>{"name": "ping", "arguments": {}}</tool_call>')

    assert (said.text, said.tool_calls, said.finish_reason) == ("It is sunny.", [], "stop")
    assert (called.text, called.finish_reason) == ("", "tool_calls")


def test_a_call_cut_off_by_the_token_limit_keeps_length() -> None:
    answer = read(plan("hermes"), '<tool_call>{"name": "get_weather", "arguments": {"city": "Par', "length")

    assert answer.finish_reason == "length"
    assert [call.arguments for call in answer.tool_calls] == ['{"city": "Par']


def test_auto_without_parallel_calls_ends_behind_the_first() -> None:
    made = plan("hermes", parallel_tool_calls=False)

    assert made.apply(SamplingParams(stop=("x",))).stop == ("x", "</tool_call>")
    answer = read(made, '<tool_call>{"name": "ping"}\n')
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("ping", "{}")]
    assert (answer.text, answer.finish_reason) == ("", "tool_calls")


def test_control_tokens_stay_in_the_text_where_they_are_the_markers() -> None:
    with_token = plan("llama3", {"<|python_tag|>": 128010})
    without = plan("llama3")

    assert with_token.apply(SamplingParams()).skip_special_tokens is False
    assert without.apply(SamplingParams()).skip_special_tokens is True


def test_a_forced_call_asks_for_the_control_token_itself() -> None:
    made = plan("mistral", {"[TOOL_CALLS]": 261}, tool_choice="required")  # 261 is the byte vocabulary's own eos

    assert made.grammar is not None
    assert not accepts(made.grammar, '[TOOL_CALLS][{"name": "ping", "arguments": {}}]')


def test_an_answer_in_a_given_form_may_still_be_a_call() -> None:
    made = plan("hermes", response_format={"type": "json_object"})
    assert made.grammar is not None

    assert accepts(made.grammar, '{"sunny": true}')
    assert accepts(made.grammar, '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>')
    assert not accepts(made.grammar, "It is sunny.")


def test_a_schema_that_cannot_be_held_to_is_refused_when_the_call_is_forced() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}]

    with pytest.raises(InvalidRequest, match="Invalid schema for function 'f'") as caught:
        plan("hermes", tools=tools, tool_choice="required")

    assert caught.value.param == "tools[0].function.parameters"
    assert plan("hermes", tools=tools).grammar is None


def test_no_tools_leave_the_text_alone() -> None:
    made = plan("hermes", tool_choice="none")

    assert (made.new_parser, made.grammar, made.policy) == (None, None, None)
    assert made.apply(SamplingParams()) == SamplingParams()


def strictly(**fields: Any) -> OutputPlan:
    tools = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]  # type: ignore[dict-item]
    return plan("hermes", tools=tools, **fields)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


GOOD = call("get_weather", '{"city": "Ulm", "unit": "c"}')


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("No call at all, 2 < 3 and </tool_call>.", True),
        ("", True),
        (GOOD, True),
        (f"Let me see.\n{GOOD}\n{GOOD} Done.", True),
        (call("ping", '{"any": [1]}'), True),  # not strict: any object
        (call("get_weather", '{"city": "Ulm"}'), False),
        (call("get_weather", '{"city": "Ulm", "unit": "k"}'), False),
        (call("get_time", "{}"), False),
        ("<tool_call> is a tag.", False),
        (f"{GOOD} and <tool_call>", False),
    ],
)
def test_calls_of_strict_functions_are_held_to_their_schemas_once_they_begin(text: str, taken: bool) -> None:
    made = strictly()
    assert made.grammar is not None
    assert made.free_start
    assert accepts(made.grammar, text) is taken


def test_without_parallel_calls_one_strict_call_ends_the_calls() -> None:
    made = strictly(parallel_tool_calls=False)
    assert made.grammar is not None
    assert accepts(made.grammar, GOOD)
    assert made.stop == ("</tool_call>",)


def test_nothing_is_constrained_where_no_function_is_strict() -> None:
    made = plan("hermes")
    assert (made.grammar, made.free_start) == (None, True)


def test_a_strict_schema_that_cannot_be_held_to_is_refused_by_name() -> None:
    function = {"name": "odd", "strict": True, "parameters": {"type": "object", "not": {}}}
    with pytest.raises(InvalidRequest) as refused:
        plan("hermes", tools=[{"type": "function", "function": function}])
    assert refused.value.param == "tools[0].function.parameters"
