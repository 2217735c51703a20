"""Reasoning is told apart from content, at every split, and the two reach clients under their own names."""

from __future__ import annotations

from typing import Any

import pytest

from engine.chat_template import ChatTemplate
from engine.types import Unstopped
from gateway.calls import Choice
from gateway.prompts import TextModel
from gateway.reasoning import ReasoningParser, reasoning_of, with_reasoning
from gateway.tools.choice import Mode, ToolPolicy
from gateway.tools.format import ToolSpec
from gateway.tools.parser import ToolOutputParser
from gateway.tools.registry import FORMATS
from tests.gateway.conftest import StartGateway, frames
from tests.gateway.fakes import CHATML, Script, ScriptedEngine, byte_tokenizer, model_info
from tests.gateway.responses.test_responses import events

CALL = '<tool_call>{"name": "ping"}</tool_call>'
POLICY = ToolPolicy(mode=Mode.AUTO, tools=(), callable=(ToolSpec(name="ping", parameters={}),))


def read(chunks: Any, *, is_open: bool = False, tools: bool = False) -> Choice:
    inner = ToolOutputParser(FORMATS["hermes"], POLICY, new_id=lambda: "call_1") if tools else None
    parser, choice = ReasoningParser(inner, is_open=is_open), Choice(index=0)
    for chunk in chunks:
        choice.add(parser.feed(chunk))
    choice.add(parser.finish("stop"))
    return choice


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "content"),
    [
        ("<think>\nHm, 2 < 3.\n</think>\n\nYes.", False, "Hm, 2 < 3.", "Yes."),
        ("Hm.\n</think>\nYes.", True, "Hm.", "Yes."),
        ("\n<think></think>Yes.", False, "", "Yes."),
        ("No thought: <think> is a tag.", False, "", "No thought: <think> is a tag."),
        ("<think>cut off here </thi", False, "cut off here </thi", ""),
        (" <thin", False, "", " <thin"),
        ("", True, "", ""),
    ],
)
def test_reasoning_and_content_are_told_apart_at_every_split(
    text: str, is_open: bool, reasoning: str, content: str
) -> None:
    whole = read([text], is_open=is_open)

    assert (whole.reasoning, whole.text) == (reasoning, content)
    assert read(text, is_open=is_open) == whole
    for cut in range(len(text)):
        assert read([text[:cut], text[cut:]], is_open=is_open) == whole, cut


def test_calls_behind_the_reasoning_are_read() -> None:
    for chunks in ([f"<think>Ping it.</think>\n{CALL}"], f"<think>Ping it.</think>\n{CALL}"):
        choice = read(chunks, tools=True)

        assert (choice.reasoning, choice.text, choice.finish_reason) == ("Ping it.", "", "tool_calls")
        assert [call.name for call in choice.tool_calls] == ["ping"]


def test_a_call_inside_the_reasoning_is_only_thought_of() -> None:
    choice = read([f"<think>Maybe {CALL}?</think>No."], tools=True)

    assert (choice.reasoning, choice.text, choice.tool_calls) == (f"Maybe {CALL}?", "No.", [])


def test_other_models_and_constrained_answers_are_left_alone() -> None:
    assert reasoning_of("{{ messages }}", prompt_end="<think>", has_grammar=False) is None
    assert reasoning_of("<think>", prompt_end="", has_grammar=True) is None
    assert with_reasoning(None, None) is None


THINKING = CHATML.replace(
    "assistant\n{% endif %}", "assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def thinking_model() -> TextModel:
    tokenizer = byte_tokenizer()
    return TextModel(model_info(max_model_len=4096), tokenizer, ChatTemplate(THINKING, tokenizer))


@pytest.mark.parametrize(
    ("steps", "fields"),
    [
        (("<thi", "nk>Let me ", "see.</think>", "\n\nParis."), {}),
        (("Let me ", "see.</think>", "\n\nParis."), {"chat_template_kwargs": {"enable_thinking": True}}),
    ],
)
async def test_clients_get_reasoning_content_beside_content(
    start_gateway: StartGateway, steps: tuple[str, ...], fields: dict[str, Any]
) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(steps=steps)), text_model=thinking_model())

    plain = (await gateway.chat("capital?", **fields)).json()
    streamed = frames(await gateway.chat("capital?!", stream=True, **fields))

    message = plain["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "Paris.")
    assert 0 < plain["usage"]["completion_tokens_details"]["reasoning_tokens"] < len(steps)
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Let me see."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Paris."


async def test_a_response_has_its_reasoning_as_an_item_of_its_own(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(Script(steps=("<think>Let me see.", "</think>", "Paris.")))
    gateway = await start_gateway(engine, text_model=thinking_model())

    got = events(await gateway.post("/v1/responses", {"model": "m", "input": "capital?", "stream": True}))

    kinds = [event["type"] for event in got]
    first_delta = kinds.index("response.reasoning_text.delta")
    assert kinds[first_delta - 1] == "response.content_part.added"
    assert got[first_delta - 1]["part"]["type"] == "reasoning_text"
    assert [item["type"] for item in got[-1]["response"]["output"]] == ["reasoning", "message"]
    assert {event["content_index"] for event in got if "content_index" in event} == {0}


@pytest.mark.parametrize("thinks", [False, True])
async def test_stop_strings_are_for_the_answer_behind_the_reasoning(start_gateway: StartGateway, thinks: bool) -> None:
    gateway = await start_gateway(text_model=thinking_model())

    await gateway.chat("capital?", stop=["\n\n"], chat_template_kwargs={"enable_thinking": thinks})

    sampling = gateway.engine.requests[0].sampling
    assert (sampling.stop, sampling.unstopped) == (("\n\n",), Unstopped("<think>", "</think>", is_open=thinks))


async def test_reasoning_is_told_apart_beside_strict_functions_too(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(Script(steps=("<think>Let me see.", "</think>", "Paris.")))
    gateway = await start_gateway(engine, text_model=thinking_model())
    tool = {"type": "function", "function": {"name": "ping", "strict": True, "parameters": {"type": "object"}}}

    message = (await gateway.chat("capital?", tools=[tool])).json()["choices"][0]["message"]

    assert engine.requests[0].sampling.grammar is not None
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "Paris.")
