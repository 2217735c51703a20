"""Tools over HTTP: deltas as the SDKs need them, OpenAI's finish reasons, refusals before anything is queued."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from engine.types import EngineRequest, FinishReason
from tests.gateway.conftest import Gateway, StartGateway, frames
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.surface import roomy_model

NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
PING = {"type": "function", "function": {"name": "ping"}}
NAMED_NOW = {"type": "function", "function": {"name": "now"}}
CALL = ("Let me see. ", "<tool", "_call>\n", '{"name": "now", "argu', 'ments": {"zone"', ': "UTC"}}', "\n</tool_call>")


@pytest.fixture
def says(start_gateway: StartGateway) -> Callable[..., Awaitable[Gateway]]:
    """A gateway whose engine writes these steps."""

    async def start(*steps: str, finish: FinishReason = FinishReason.STOP) -> Gateway:
        return await start_gateway(ScriptedEngine(Script(steps=steps, finish=finish)), text_model=roomy_model())

    return start


Says = Callable[..., Awaitable[Gateway]]


async def test_a_call_in_a_plain_answer_stands_beside_its_words(says: Says) -> None:
    gateway = await says(*CALL)

    response = await gateway.chat("time?", tools=[NOW])

    [choice] = response.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    [call] = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "now", "arguments": '{"zone": "UTC"}'}


async def test_deltas_name_a_call_once_and_then_only_add_arguments(says: Says) -> None:
    gateway = await says(*CALL)

    response = await gateway.chat("time?", tools=[NOW], stream=True)

    deltas = [chunk["choices"][0]["delta"] for chunk in frames(response)]
    calls = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert all(isinstance(entry, list) and len(entry) == 1 for entry in calls)
    first, *later = [entry[0] for entry in calls]
    assert (first["index"], first["type"], first["function"]["name"]) == (0, "function", "now")
    assert later
    assert all(set(entry) == {"index", "function"} and set(entry["function"]) == {"arguments"} for entry in later)
    assert "".join(entry["function"]["arguments"] for entry in [first, *later]) == '{"zone": "UTC"}'
    assert "".join(delta.get("content") or "" for delta in deltas) == "Let me see."
    assert frames(response)[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_content_is_null_where_there_are_only_calls(says: Says) -> None:
    gateway = await says('<tool_call>{"name": "ping"}</tool_call>')

    message = (await gateway.chat("ping", tools=[PING])).json()["choices"][0]["message"]

    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("choice", "finish_reason"), [("required", "tool_calls"), ("auto", "tool_calls"), (NAMED_NOW, "stop")]
)
async def test_finish_reason_is_openais_for_every_choice(says: Says, choice: Any, finish_reason: str) -> None:
    gateway = await says('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')

    plain = (await gateway.chat("time?", tools=[NOW], tool_choice=choice)).json()["choices"][0]
    streamed = frames(await gateway.chat("time?!", tools=[NOW], tool_choice=choice, stream=True))

    assert plain["finish_reason"] == finish_reason
    assert streamed[-1]["choices"][0]["finish_reason"] == finish_reason
    assert len(plain["message"]["tool_calls"]) == 1


async def test_text_without_calls_has_no_list_of_calls(says: Says) -> None:
    gateway = await says("It is ", "noon.")

    choice = (await gateway.chat("time?", tools=[NOW])).json()["choices"][0]

    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


async def test_none_leaves_the_text_as_it_is_and_the_tools_out_of_the_prompt(says: Says) -> None:
    gateway = await says("<tool_call>")
    bare = await gateway.chat("time?")

    answer = await gateway.chat("time?", tools=[NOW], tool_choice="none")

    assert answer.json()["choices"][0]["message"]["content"] == "<tool_call>"
    assert answer.json()["usage"]["prompt_tokens"] == bare.json()["usage"]["prompt_tokens"]


async def test_a_call_cut_off_keeps_length(says: Says) -> None:
    gateway = await says(*CALL[:5], finish=FinishReason.LENGTH)

    choice = (await gateway.chat("time?", tools=[NOW])).json()["choices"][0]

    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"zone"'


async def test_forced_calls_reach_the_engine_as_a_grammar(says: Says) -> None:
    gateway = await says('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')

    await gateway.chat("time?", tools=[NOW], tool_choice="required")
    await gateway.chat("time?", tools=[NOW])

    forced, free = (request.sampling.grammar for request in gateway.engine.requests)
    assert forced is not None
    assert '\\"name\\": \\"now\\"' in forced
    assert free is None


async def test_a_template_that_knows_no_tools_is_told_of_them_in_words(says: Says) -> None:
    gateway = await says("Hi")

    await gateway.chat("time?", tools=[NOW])
    prompt = roomy_model().decode(gateway.engine.requests[0].prompt_token_ids)

    assert prompt.startswith("system\nYou may call one or more functions")
    assert '"name": "now"' in prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED_NOW}, "tool_choice"),
        ({"tools": [PING], "tool_choice": NAMED_NOW}, "tool_choice"),
        ({"tools": [PING, PING]}, "tools[1].function.name"),
        ({"tools": [PING] * 129}, "tools"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "strin"}}}},
            "response_format",
        ),
    ],
)
async def test_what_cannot_be_held_to_is_refused_before_the_engine(
    says: Says, fields: dict[str, Any], param: str
) -> None:
    gateway = await says("Hi")

    response = await gateway.chat("x", **fields)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert gateway.engine.requests == []
    assert (await gateway.chat("x")).status_code == 200


RECORDED = (
    "Two things – first:\n<tool_call>\n"
    '{"name": "now", "arguments": {"zone": "Europe/Z\\u00fcrich", "note": "a \\"quoted\\" } brace", '
    '"n": [1, {"x": null}]}}'
    "\n</tool_call>\n<tool_call>\n"
    '{"name": "ping", "arguments": {}}'
    "\n</tool_call>"
)


async def test_a_recorded_answer_streams_to_the_same_calls_in_chunks_of_any_size(start_gateway: StartGateway) -> None:
    size = len(RECORDED)

    def script(_: EngineRequest) -> Script:
        return Script(steps=tuple(RECORDED[at : at + size] for at in range(0, len(RECORDED), size)))

    gateway = await start_gateway(ScriptedEngine(script), text_model=roomy_model(), cache_enabled=False)
    message = (await gateway.chat("time?", tools=[NOW, PING])).json()["choices"][0]["message"]
    expected = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert [name for name, _ in expected] == ["now", "ping"]
    assert msgspec.json.decode(expected[0][1])["note"] == 'a "quoted" } brace'

    for size in range(1, len(RECORDED)):
        chunks = frames(await gateway.chat("time?", tools=[NOW, PING], stream=True))
        calls: list[list[str]] = []
        for delta in (chunk["choices"][0]["delta"] for chunk in chunks):
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(calls):
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"]["arguments"]
        assert [tuple(call) for call in calls] == expected, size
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        assert text == message["content"], size
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
