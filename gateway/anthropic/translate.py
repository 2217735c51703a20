"""A Messages body as the ChatRequest it comes down to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from gateway.errors import InvalidRequest, clip
from gateway.schemas.chat import (
    ChatRequest,
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    Message,
    Tool,
    ToolCall,
    ToolChoice,
)
from gateway.schemas.common import JsonSchema, ResponseFormat
from gateway.schemas.messages import AnthropicToolChoice, Block, CountTokensRequest, MessagesRequest, TurnIn

_NAMES = {"response_format": "output_config.format", "max_completion_tokens": "max_tokens", "stop": "stop_sequences"}
_HEAD = re.compile(r"\w+")


def chat_request(data: CountTokensRequest) -> ChatRequest:
    """Raises: InvalidRequest naming the message and the block."""
    messages: list[Message] = []
    if data.system:
        messages.append(Message(role="system", content=_text_of(data.system, "system")))
    for index, turn in enumerate(data.messages):
        _add_turn(messages, turn, f"messages[{index}]")
    chat = ChatRequest(
        model=data.model,
        messages=messages,
        tools=_tools(data) or None,
        tool_choice=_tool_choice(data.tool_choice),
        response_format=_response_format(data),
        chat_template_kwargs=None if data.thinking is None else {"enable_thinking": data.thinking.type != "disabled"},
    )
    if data.tool_choice is not None and data.tool_choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    if messages[-1].role == "assistant":  # a prefilled answer, which the model goes on with
        chat.continue_final_message, chat.add_generation_prompt = True, False
    if isinstance(data, MessagesRequest):
        _add_sampling(chat, data)
    return chat


def _add_sampling(chat: ChatRequest, data: MessagesRequest) -> None:
    chat.stream = data.stream
    chat.max_completion_tokens = data.max_tokens
    chat.stop = list(data.stop_sequences) if data.stop_sequences else None
    chat.temperature = data.temperature
    chat.top_p = data.top_p
    chat.top_k = data.top_k
    chat.user = data.metadata.user_id if data.metadata else None
    chat.service_tier = "default" if data.service_tier == "standard_only" else "auto"


def _tools(data: CountTokensRequest) -> list[Tool]:
    return [
        Tool(
            type="function",
            function=FunctionDefinition(
                name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
            ),
        )
        for tool in data.tools or ()
    ]


def _tool_choice(choice: AnthropicToolChoice | None) -> Literal["none", "auto", "required"] | ToolChoice | None:
    if choice is None or choice.type == "auto":
        return None
    if choice.type == "none":
        return "none"
    if choice.type == "any":
        return "required"
    if choice.name is None:
        name = "tool_choice.name"
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    return ToolChoice(type="function", function=FunctionName(name=choice.name))


def _response_format(data: CountTokensRequest) -> ResponseFormat | None:
    if data.output_config is None or data.output_config.format is None:
        return None
    schema = JsonSchema(name="output", schema=data.output_config.format.schema, strict=True)
    return ResponseFormat(type="json_schema", json_schema=schema)


def _add_turn(messages: list[Message], turn: TurnIn, where: str) -> None:
    if isinstance(turn.content, str):
        messages.append(Message(role=turn.role, content=turn.content))
        return
    if turn.role == "assistant":
        messages.append(_assistant(turn.content, where))
        return
    texts: list[str] = []
    for number, block in enumerate(turn.content):
        at = f"{where}.content[{number}]"
        if block.get("type") == "tool_result":
            messages.append(_tool_result(block, at))
        else:
            texts.append(_text_block(block, at))
    if texts or not turn.content:
        messages.append(Message(role=turn.role, content="".join(texts)))


def _assistant(blocks: list[Block], where: str) -> Message:
    message = Message(role="assistant", content="")
    texts: list[str] = []
    for number, block in enumerate(blocks):
        at = f"{where}.content[{number}]"
        kind = block.get("type")
        if kind == "tool_use":
            message.tool_calls = [*(message.tool_calls or []), _tool_use(block, at)]
        elif kind == "thinking":
            message.reasoning_content = (message.reasoning_content or "") + _string(block, "thinking", at)
        elif kind != "redacted_thinking":
            texts.append(_text_block(block, at))
    message.content = "".join(texts)
    return message


def _tool_use(block: Block, where: str) -> ToolCall:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        name = f"{where}.input"
        raise InvalidRequest(f"Invalid type for '{name}': expected an object.", param=name, code="invalid_type")
    call = FunctionCall(name=_string(block, "name", where), arguments=arguments)
    return ToolCall(id=_string(block, "id", where), type="function", function=call)


def _tool_result(block: Block, where: str) -> Message:
    content = block.get("content")
    text = "" if content is None else _text_of(content, f"{where}.content")
    if block.get("is_error"):
        text = f"Error: {text}"
    return Message(role="tool", tool_call_id=_string(block, "tool_use_id", where), content=text)


def _text_of(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"Invalid type for '{where}': expected one of a string or an array.", param=where, code="invalid_type"
        )
    return "".join(_text_block(block, f"{where}[{number}]") for number, block in enumerate(content))


def _text_block(block: Any, where: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return _string(block, "text", where)
    shown = clip(kind, 40) if isinstance(kind, str) else "null"
    raise InvalidRequest(
        f"Invalid content type '{shown}' in '{where}': this model reads text, tool_use and tool_result only.",
        param=where,
        code="invalid_value",
    )


def _string(block: Block, key: str, where: str) -> str:
    value = block.get(key)
    name = f"{where}.{key}"
    if value is None:
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if not isinstance(value, str):
        raise InvalidRequest(f"Invalid type for '{name}': expected a string.", param=name, code="invalid_type")
    return value


@contextmanager
def own_names() -> Iterator[None]:
    """Errors about the ChatRequest name this API's parameters."""
    try:
        yield
    except InvalidRequest as exc:
        found = _HEAD.match(exc.param or "")
        if found is not None and found[0] in _NAMES:
            exc.param = _NAMES[found[0]] + (exc.param or "").removeprefix(found[0])
        raise
