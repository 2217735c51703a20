"""OpenAI messages as chat templates can take them: what real templates do with raw ones is silent damage.

A null content would print `None`, a list of parts its Python repr, a call's arguments as a string would be escaped
twice, the role `developer` is dropped by some families. So: developer becomes system, text parts are joined without a
separator, null becomes the empty text, arguments become objects, an empty list of calls vanishes. What cannot be
mended is refused here, with the parameter's name, before the template sees it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import InvalidRequest
from gateway.schemas.chat import ContentPart, Message, Tool, ToolCall

_TEXT_PARTS = ("text", "input_text", "output_text")
_KNOWN_PARTS = ("text", "image_url", "input_audio", "refusal", "file", "video_url")


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Plain dicts, lists and strings for the template. Raises: InvalidRequest naming the message and the field."""
    out: list[dict[str, Any]] = []
    open_calls: set[str] = set()
    has_calls = False
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.role in ("tool", "function"):
            _check_tool_message(message, index, open_calls, has_calls=has_calls)
        plain = _plain(message, where)
        if message.role == "assistant" and message.tool_calls:
            has_calls = True
            open_calls |= {call.id for call in message.tool_calls if call.id}
        out.append(plain)
    return out


def _check_tool_message(message: Message, index: int, open_calls: set[str], *, has_calls: bool) -> None:
    if not has_calls and message.role == "tool":
        raise InvalidRequest(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
            "'tool_calls'.",
            param=f"messages.[{index}].role",
        )
    if message.role == "tool" and not message.tool_call_id:
        name = f"messages[{index}].tool_call_id"
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if message.role == "tool" and open_calls and message.tool_call_id not in open_calls:
        raise InvalidRequest(
            "Invalid parameter: 'tool_call_id' of a message with role 'tool' must be the id of a preceding tool call.",
            param=f"messages[{index}].tool_call_id",
        )


def _plain(message: Message, where: str) -> dict[str, Any]:
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    plain: dict[str, Any] = {"role": role, "content": _content(message, where)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning_content or message.reasoning
    if role == "assistant" and reasoning:
        plain["reasoning_content"] = reasoning
    if message.tool_calls:
        if role != "assistant":
            raise InvalidRequest(
                f"Invalid '{where}.tool_calls': only messages with role 'assistant' can have tool calls.",
                param=f"{where}.tool_calls",
                code="invalid_value",
            )
        plain["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(message.tool_calls)
        ]
    return plain


def _content(message: Message, where: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part, f"{where}.content[{number}]") for number, part in enumerate(content))
    if message.role == "assistant":
        return message.refusal or ""
    name = f"{where}.content"
    raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")


def _part_text(part: ContentPart, where: str) -> str:
    if part.type in _TEXT_PARTS:
        if part.text is None:
            name = f"{where}.text"
            raise InvalidRequest(
                f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter"
            )
        return part.text
    if part.type == "refusal":
        return part.refusal or ""
    if part.type in _KNOWN_PARTS:
        raise InvalidRequest(
            f"Invalid content type '{part.type}' in '{where}': this model reads text only.",
            param=where,
            code="invalid_value",
        )
    raise InvalidRequest(
        f"Invalid value: '{part.type[:40]}'. Supported values are: 'text', 'image_url', 'input_audio', 'refusal', "
        "and 'file'.",
        param=f"{where}.type",
        code="invalid_value",
    )


def _tool_call(call: ToolCall, where: str) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments, where)},
    }
    if call.id is not None:
        plain["id"] = call.id
    return plain


def _arguments(arguments: str | dict[str, Any] | None, where: str) -> dict[str, Any]:
    """The object: templates print it themselves. An empty text is a call without arguments."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, dict):
        return arguments
    name = f"{where}.function.arguments"
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidRequest(
            f"Invalid '{name}': the arguments of a call must be a JSON object as text, but this is not valid JSON.",
            param=name,
            code="invalid_value",
        ) from exc
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"Invalid '{name}': the arguments of a call must be a JSON object.", param=name, code="invalid_value"
        )
    return value


def template_tools(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """Tools for the template; a function without parameters takes an empty object."""
    if not tools:
        return None
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def merge_systems(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All system messages as one at the front: some families take only that."""
    systems = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    if not systems:
        return rest
    return [{"role": "system", "content": "\n\n".join(systems)}, *rest]
