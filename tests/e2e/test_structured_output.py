"""Structured output on the real model at temperature 1: what is finished validates, nothing loops on white space."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.conftest import Weir
from tests.gateway.json_schemas import SCHEMAS

MODEL = "smollm2"
MAX_TOKENS = 400
HANDFUL = ("two fields", "enum behind ref", "linked list", "array of objects", "date-time")
NONSENSE: list[Any] = [{"role": "user", "content": "flurb the gromulent sprocket"}]
WHITE_SPACE = re.compile(r"\s{18,}")  # a newline and sixteen blanks are the most that is allowed in one place


def answers(weir: Weir, names: tuple[str, ...], *, tries: int) -> list[tuple[str, str, str]]:
    """(schema, text, finish_reason) of every try, with another seed each."""

    def ask(job: tuple[str, int]) -> tuple[str, str, str]:
        name, seed = job
        choice = (
            weir.client(timeout=300)
            .chat.completions.create(
                model=MODEL,
                messages=NONSENSE,
                temperature=1,
                seed=seed,
                max_tokens=MAX_TOKENS,
                response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMAS[name]}},
            )
            .choices[0]
        )
        return name, choice.message.content or "", choice.finish_reason

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, [(name, seed) for name in names for seed in range(tries)]))


def check(got: list[tuple[str, str, str]]) -> int:
    """Asserts what must hold of every answer; returns how many were finished."""
    finished = 0
    for name, text, finish_reason in got:
        outside_strings = re.sub(r'"(\\.|[^"\\])*"?', '""', text)
        assert not WHITE_SPACE.search(outside_strings), (name, text)
        if finish_reason == "length":
            continue
        assert finish_reason == "stop", (name, text, finish_reason)
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(json.loads(text))
        finished += 1
    return finished


def test_finished_answers_validate(weir: Weir) -> None:
    got = answers(weir, HANDFUL, tries=1)

    assert check(got) >= len(got) // 2


@pytest.mark.heavy
def test_forty_schemas_of_growing_difficulty_hold_at_temperature_one(weir: Weir) -> None:
    got = answers(weir, tuple(SCHEMAS), tries=3)

    finished = check(got)
    print(f"{finished} of {len(got)} answers finished within {MAX_TOKENS} tokens; every one validates")
    assert finished >= len(got) * 0.8


def test_json_mode_ends_with_the_closing_brace_though_json_is_not_asked_for(weir: Weir) -> None:
    choice = (
        weir.client()
        .chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hello"}],
            response_format={"type": "json_object"},
            temperature=0,
            max_tokens=512,
        )
        .choices[0]
    )

    text = choice.message.content or ""
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
        assert text.endswith("}")
    assert not WHITE_SPACE.search(text)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"type": "strin"},
        {"$ref": "#/nope"},
    ],
)
def test_a_schema_that_cannot_end_or_is_none_is_refused_and_the_engine_lives(
    weir: Weir, schema: dict[str, Any]
) -> None:
    client = weir.client()

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL,
            messages=NONSENSE,
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        )

    assert caught.value.param == "response_format"
    assert client.chat.completions.create(model=MODEL, messages=NONSENSE, max_tokens=1).choices


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add_person", "description": "Adds a person.", "parameters": PERSON}},
    {"type": "function", "function": {"name": "ping"}},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add_person"}}])
def test_forced_calls_of_the_real_model_validate(weir: Weir, choice: Any, stream: bool) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Add Ada, 36."}],
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": 1,
        "seed": 3,
        "max_tokens": 200,
    }
    client = weir.client()

    if stream:
        with client.chat.completions.stream(**asked) as events:
            events.until_done()
            [answer] = events.get_final_completion().choices
    else:
        [answer] = client.chat.completions.create(**asked).choices  # type: ignore[list-item]

    [call] = answer.message.tool_calls or []
    assert answer.message.content is None or answer.message.content == ""
    arguments = json.loads(call.function.arguments)  # type: ignore[union-attr]
    if call.function.name == "add_person":  # type: ignore[union-attr]
        jsonschema.validate(arguments, PERSON)
    else:
        assert (call.function.name, arguments) == ("ping", {})  # type: ignore[union-attr]
    assert answer.finish_reason == ("tool_calls" if choice == "required" else "stop")


def test_beside_a_strict_function_free_text_stays_free(weir: Weir) -> None:
    function = {**TOOLS[0]["function"], "strict": True}
    done = weir.client().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        tools=[{"type": "function", "function": function}],
        temperature=0,
        max_tokens=300,
    )

    [answer] = done.choices
    for call in answer.message.tool_calls or ():
        jsonschema.validate(json.loads(call.function.arguments), PERSON)  # type: ignore[union-attr]
    assert answer.message.tool_calls or answer.message.content
    assert answer.finish_reason in ("stop", "tool_calls")
