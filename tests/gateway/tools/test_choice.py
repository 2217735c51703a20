"""tools and tool_choice of a request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidRequest
from gateway.schemas.chat import ChatRequest
from gateway.tools.choice import NO_PARAMETERS, Mode, tool_policy


def function(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    body = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": body}


def request(**fields: Any) -> ChatRequest:
    return msgspec.convert({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}, ChatRequest)


TOOLS = [function("now"), function("add", {"type": "object", "properties": {"a": {"type": "integer"}}})]
NAMED = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, Mode.AUTO, {"now", "add"}),
        ("auto", Mode.AUTO, {"now", "add"}),
        ("required", Mode.REQUIRED, {"now", "add"}),
        (NAMED, Mode.NAMED, {"now"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("add")]}},
            Mode.REQUIRED,
            {"add"},
        ),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("add")]}}, Mode.AUTO, {"add"}),
    ],
)
def test_every_tool_choice_says_what_may_be_called(choice: Any, mode: Mode, names: set[str]) -> None:
    policy = tool_policy(request(tools=TOOLS, tool_choice=choice))

    assert policy is not None
    assert (policy.mode, policy.names) == (mode, names)
    assert len(policy.tools) == 2


@pytest.mark.parametrize(
    "fields", [{}, {"tools": []}, {"tool_choice": "auto"}, {"tools": TOOLS, "tool_choice": "none"}]
)
def test_no_call_may_be_made_without_tools_or_with_none(fields: dict[str, Any]) -> None:
    assert tool_policy(request(**fields)) is None


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    policy = tool_policy(request(tools=[function("now"), function("then", {})]))

    assert policy is not None
    assert [spec.parameters for spec in policy.callable] == [NO_PARAMETERS, NO_PARAMETERS]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice", "only allowed when 'tools' are specified"),
        ({"tool_choice": NAMED}, "tool_choice", "only allowed when 'tools' are specified"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice", "'nope'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function", "Missing"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools", "Missing"),
        ({"tools": [*TOOLS, function("now")]}, "tools[2].function.name", "defined twice"),
        ({"tools": [function("f", {"type": "string"})]}, "tools[0].function.parameters", 'type: "object"'),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tool_policy(request(**fields))

    assert caught.value.param == param
    assert words in caught.value.message
