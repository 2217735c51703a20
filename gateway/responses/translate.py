"""A Responses body as the ChatRequest it comes down to: the same limits, template, tools and grammar serve both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from gateway.errors import InvalidRequest
from gateway.responses.items import text_input, to_messages
from gateway.schemas.chat import (
    AllowedTool,
    AllowedTools,
    ChatRequest,
    FunctionDefinition,
    FunctionName,
    Message,
    Tool,
    ToolChoice,
)
from gateway.schemas.common import JsonSchema, ResponseFormat
from gateway.schemas.responses import FunctionTool, Item, ResponsesRequest, ResponsesToolChoice, TextFormat

LOGPROBS = "message.output_text.logprobs"

# What a chat's errors call by its own names, in the words of this API.
_NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
}
_HEAD = re.compile(r"\w+")


def input_items(data: ResponsesRequest) -> list[Item]:
    """The body's own items. Raises: InvalidRequest when there is no input."""
    if isinstance(data.input, str):
        return [text_input(data.input)]
    if not data.input and data.previous_response_id is None:
        raise InvalidRequest("Missing required parameter: 'input'.", param="input", code="missing_required_parameter")
    return data.input or []


def chat_request(data: ResponsesRequest, history: list[Item]) -> ChatRequest:
    """Args: history is the items of the responses before this one. Raises: InvalidRequest."""
    messages = [*to_messages(history, param="previous_response_id"), *to_messages(input_items(data))]
    if data.instructions:
        messages.insert(0, Message(role="system", content=data.instructions))
    wants_logprobs = LOGPROBS in (data.include or ()) or bool(data.top_logprobs)
    return ChatRequest(
        model=data.model,
        messages=messages,
        stream=data.stream,
        temperature=data.temperature,
        top_p=data.top_p,
        max_completion_tokens=data.max_output_tokens,
        logprobs=wants_logprobs or None,
        top_logprobs=data.top_logprobs if wants_logprobs else None,
        response_format=_response_format(data.text.format if data.text else None),
        tools=[_tool(tool) for tool in data.tools or ()] or None,
        tool_choice=_tool_choice(data.tool_choice),
        parallel_tool_calls=data.parallel_tool_calls,
        reasoning_effort=data.reasoning.effort if data.reasoning else None,
        truncation=data.truncation,
        metadata=data.metadata,
        user=data.user,
        safety_identifier=data.safety_identifier,
        prompt_cache_key=data.prompt_cache_key,
        service_tier=data.service_tier,
        seed=data.seed,
        stop=data.stop,
        top_k=data.top_k,
        min_p=data.min_p,
        presence_penalty=data.presence_penalty,
        frequency_penalty=data.frequency_penalty,
        repetition_penalty=data.repetition_penalty,
        chat_template_kwargs=data.chat_template_kwargs,
        priority=data.priority,
    )


def _response_format(format_: TextFormat | None) -> ResponseFormat | None:
    if format_ is None:
        return None
    if format_.type != "json_schema":
        return ResponseFormat(type=format_.type)
    if format_.name is None:
        name = "text.format.name"
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    return ResponseFormat(
        type="json_schema", json_schema=JsonSchema(name=format_.name, schema=format_.schema, strict=format_.strict)
    )


def _tool(tool: FunctionTool) -> Tool:
    return Tool(
        type="function",
        function=FunctionDefinition(
            name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        ),
    )


def _tool_choice(
    choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None,
) -> Literal["none", "auto", "required"] | ToolChoice | None:
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type == "function":
        if choice.name is None:
            name = "tool_choice.name"
            raise InvalidRequest(
                f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter"
            )
        return ToolChoice(type="function", function=FunctionName(name=choice.name))
    if choice.tools is None or choice.mode is None:
        name = "tool_choice.tools" if choice.tools is None else "tool_choice.mode"
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    tools = [AllowedTool(type="function", function=FunctionName(name=tool.name)) for tool in choice.tools]
    return ToolChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=choice.mode, tools=tools))


@contextmanager
def own_names() -> Iterator[None]:
    """Errors about the ChatRequest name this API's parameters."""
    try:
        yield
    except InvalidRequest as exc:
        found = _HEAD.match(exc.param or "")
        if found is not None and found[0] in _NAMES:
            head, name = found[0], _NAMES[found[0]]
            exc.param = name + (exc.param or "").removeprefix(head)
            exc.message = exc.message.replace(f"'{head}", f"'{name}")
        raise
