"""Items of the Responses API as chat messages.

A conversation is a list of items: messages, calls, outputs of calls, reasoning. Chat templates know messages only, so
calls join the assistant's message before them, and reasoning goes into the message it led to.
"""

from __future__ import annotations

from typing import Any

from gateway.errors import InvalidRequest, clip
from gateway.schemas.chat import ContentPart, FunctionCall, Message, ToolCall
from gateway.schemas.responses import Item

_ROLES = ("user", "assistant", "system", "developer")
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_MEDIA_PARTS = ("input_image", "input_file", "input_audio")


def with_ids(items: list[Item], new_id: Any) -> list[Item]:
    """The items as they are kept and listed: each with an id and a type."""
    kept = []
    for item in items:
        kind = item.get("type") or "message"
        kept.append({**item, "type": kind, "id": item.get("id") or new_id(_ID_PREFIX.get(kind, "item"))})
    return kept


_ID_PREFIX = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def text_input(text: str) -> Item:
    """A plain string as the item it stands for."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def to_messages(items: list[Item], *, param: str = "input") -> list[Message]:
    """Raises: InvalidRequest naming the item and the field."""
    builder = _Builder()
    for index, item in enumerate(items):
        builder.add(item, f"{param}[{index}]")
    return builder.done()


class _Builder:
    """Gathers the messages; `_calls` and `_reasoning` wait for the assistant's message they belong to."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._reasoning: str | None = None

    def add(self, item: Item, where: str) -> None:
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            self._message(item, where)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            self._output(item, where)
        elif kind == "reasoning":
            self._reasoning = _reasoning_text(item)
        else:
            shown = clip(kind) if isinstance(kind, str) else "null"
            raise InvalidRequest(
                f"Invalid value: '{shown}'. Supported values are: 'message', 'function_call', "
                "'function_call_output', and 'reasoning'.",
                param=f"{where}.type",
                code="invalid_value",
            )

    def _message(self, item: Item, where: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise InvalidRequest(
                f"Invalid value: '{clip(str(role), 40)}'. Supported values are: 'assistant', 'system', 'developer', "
                "and 'user'.",
                param=f"{where}.role",
                code="invalid_value",
            )
        message = Message(role=role, content=_content(item.get("content"), f"{where}.content"))
        if role == "assistant":
            message.reasoning_content, self._reasoning = self._reasoning, None
        self._messages.append(message)

    def _call(self, item: Item, where: str) -> None:
        call = ToolCall(
            id=_text(item, "call_id", where),
            function=FunctionCall(
                name=_text(item, "name", where), arguments=_text(item, "arguments", where, empty=True)
            ),
        )
        last = self._messages[-1] if self._messages else None
        if last is None or last.role != "assistant":
            last = Message(role="assistant", content="", reasoning_content=self._reasoning)
            self._reasoning = None
            self._messages.append(last)
        last.tool_calls = [*(last.tool_calls or []), call]

    def _output(self, item: Item, where: str) -> None:
        output = item.get("output")
        content = output if isinstance(output, str) else _content(output, f"{where}.output")
        self._messages.append(Message(role="tool", tool_call_id=_text(item, "call_id", where), content=content))

    def done(self) -> list[Message]:
        return self._messages


def _text(item: Item, key: str, where: str, *, empty: bool = False) -> str:
    value = item.get(key)
    name = f"{where}.{key}"
    if value is None:
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if not isinstance(value, str) or not (value or empty):
        raise InvalidRequest(f"Invalid type for '{name}': expected a string.", param=name, code="invalid_type")
    return value


def _content(content: Any, where: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    if content is None:
        raise InvalidRequest(f"Missing required parameter: '{where}'.", param=where, code="missing_required_parameter")
    if not isinstance(content, list):
        raise InvalidRequest(
            f"Invalid type for '{where}': expected one of a string or an array.", param=where, code="invalid_type"
        )
    return [_part(part, f"{where}[{number}]") for number, part in enumerate(content)]


def _part(part: Any, where: str) -> ContentPart:
    if not isinstance(part, dict):
        raise InvalidRequest(f"Invalid type for '{where}': expected an object.", param=where, code="invalid_type")
    kind = part.get("type")
    if kind in _MEDIA_PARTS:
        raise InvalidRequest(
            f"Invalid content type '{kind}' in '{where}': this model reads text only.",
            param=where,
            code="invalid_value",
        )
    field = _PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise InvalidRequest(
            f"Invalid value: '{clip(str(kind), 40)}'. Supported values are: 'input_text', 'output_text', "
            "and 'refusal'.",
            param=f"{where}.type",
            code="invalid_value",
        )
    text = _text(part, field, where, empty=True)
    return ContentPart(type="refusal", refusal=text) if field == "refusal" else ContentPart(type="text", text=text)


def _reasoning_text(item: Item) -> str:
    """The content if the model's own words are there, else the summary."""
    for key in ("content", "summary"):
        parts = item.get(key)
        if isinstance(parts, list) and parts:
            return "".join(
                part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
    return ""
