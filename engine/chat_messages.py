"""OpenAI messages brought into the one shape that chat templates expect. No torch.

Templates differ in what they break on (None printed as text, Python lists printed as lists, arguments escaped twice,
a `developer` role dropped in silence); everything is made plain here, and what cannot be is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequest

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PART_TYPES = ("text", "input_text", "output_text")
MAX_DEPTH = 64
_ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, kw_only=True)
class TemplateTraits:
    """What a template's source shows about the shapes it can read.

    `needs_parts`: iterates content without asking whether it is a string. `short_tool_ids`: demands ids of nine
    alphanumeric characters (Mistral). `system_in_user`: an option for models without a system role (Gemma 2).
    """

    needs_parts: bool = False
    short_tool_ids: bool = False
    system_in_user: bool = False


def normalise_messages(messages: Sequence[Mapping[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]]:
    """New, plain messages; the input is not touched.

    Text parts are joined without a separator. Several system messages, or one that is not first, become one first
    message, joined by a blank line. Raises: InvalidRequest naming `messages[i]` and the field.
    """
    if not messages:
        raise InvalidRequest(
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            param="messages",
            code="empty_array",
        )
    plain = [_normalise(message, f"messages[{i}]", traits) for i, message in enumerate(messages)]
    plain = _merge_system(plain)
    if traits.system_in_user and plain[0]["role"] == "system":
        plain = _system_into_user(plain)
    if traits.needs_parts:
        for message in plain:
            message["content"] = [{"type": "text", "text": message["content"]}]
    return plain


def normalise_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Deep copies as plain data; a function without parameters gets an empty object schema. None for no tools."""
    if not tools:
        return None
    plain = []
    for i, tool in enumerate(tools):
        copy = plain_copy(tool, f"tools[{i}]")
        function = copy.get("function")
        if copy.get("type") == "function" and isinstance(function, dict):
            function.setdefault("parameters", {"type": "object", "properties": {}})
        plain.append(copy)
    return plain


def _normalise(message: Mapping[str, Any], where: str, traits: TemplateTraits) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"Invalid type for '{where}': expected an object.", param=where, code="invalid_type")
    role = message.get("role")
    if role not in ROLES:
        supported = ", ".join(f"'{r}'" for r in ROLES)
        raise InvalidRequest(
            f"Invalid value: {_shown(role)}. Supported values are: {supported}.",
            param=f"{where}.role",
            code="invalid_value",
        )
    plain: dict[str, Any] = {"role": {"developer": "system", "function": "tool"}.get(role, role)}
    calls = _tool_calls(message.get("tool_calls"), where, traits)
    plain["content"] = _content(message, where, may_be_absent=role == "assistant")
    if calls:
        plain["tool_calls"] = calls
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if role == "assistant" and isinstance(reasoning, str):
        plain["reasoning_content"] = reasoning
    if isinstance(message.get("name"), str):
        plain["name"] = message["name"]
    if isinstance(message.get("tool_call_id"), str):
        plain["tool_call_id"] = _tool_id(message["tool_call_id"], traits)
    return plain


def _content(message: Mapping[str, Any], where: str, *, may_be_absent: bool) -> str:
    content = message.get("content")
    param = f"{where}.content"
    if content is None:
        if may_be_absent:
            return ""
        raise InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest(
            f"Invalid type for '{param}': expected a string or an array of content parts.",
            param=param,
            code="invalid_type",
        )
    return "".join(_part_text(part, f"{param}[{i}]") for i, part in enumerate(content))


def _part_text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind in TEXT_PART_TYPES and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, Mapping) and kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind in TEXT_PART_TYPES:
        raise InvalidRequest(
            f"Missing required parameter: '{where}.text'.", param=f"{where}.text", code="missing_required_parameter"
        )
    raise InvalidRequest(
        f"Invalid value: {_shown(kind)}. This model reads text only; supported values are: 'text'.",
        param=f"{where}.type",
        code="invalid_value",
    )


def _tool_calls(calls: object, where: str, traits: TemplateTraits) -> list[dict[str, Any]]:
    if not calls:
        return []
    param = f"{where}.tool_calls"
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InvalidRequest(f"Invalid type for '{param}': expected an array.", param=param, code="invalid_type")
    plain = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            name_param = f"{param}[{i}].function.name"
            raise InvalidRequest(
                f"Missing required parameter: '{name_param}'.", param=name_param, code="missing_required_parameter"
            )
        arguments = _arguments(function.get("arguments"), f"{param}[{i}].function.arguments")
        one: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        if isinstance(call.get("id"), str):
            one["id"] = _tool_id(call["id"], traits)
        plain.append(one)
    return plain


def _arguments(arguments: object, param: str) -> dict[str, Any]:
    """OpenAI sends arguments as JSON text; templates print objects, and would escape the text a second time."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise InvalidRequest(f"Invalid '{param}': not valid JSON.", param=param, code="invalid_json") from None
    if not isinstance(arguments, Mapping):
        raise InvalidRequest(f"Invalid '{param}': expected a JSON object, as text.", param=param, code="invalid_type")
    return plain_copy(arguments, param)


def _tool_id(tool_id: str, traits: TemplateTraits) -> str:
    """Call and reply hash alike, so they still match."""
    if not traits.short_tool_ids or (len(tool_id) == 9 and tool_id.isascii() and tool_id.isalnum()):
        return tool_id
    number = int.from_bytes(hashlib.sha256(tool_id.encode("utf-8", "surrogatepass")).digest())
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_ALPHANUMERIC))
        digits.append(_ALPHANUMERIC[digit])
    return "".join(digits)


def _merge_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Most templates refuse, and some drop, a system message anywhere but first."""
    texts = [m["content"] for m in messages if m["role"] == "system"]
    if not texts or (len(texts) == 1 and messages[0]["role"] == "system"):
        return messages
    first = {"role": "system", "content": "\n\n".join(texts)}
    return [first, *(m for m in messages if m["role"] != "system")]


def _system_into_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system, *rest = messages
    for i, message in enumerate(rest):
        if message["role"] == "user":
            joined = {**message, "content": f"{system['content']}\n\n{message['content']}"}
            return [*rest[:i], joined, *rest[i + 1 :]]
    return [{"role": "user", "content": system["content"]}, *rest]


def plain_copy(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A deep copy made of dicts, lists and JSON scalars. Raises: InvalidRequest naming `where`."""
    copied = _copy(value, where, 0)
    assert isinstance(copied, dict)
    return copied


def _copy(value: object, where: str, depth: int) -> Any:
    """Only dicts, lists and JSON scalars reach a template: no object whose methods it could call."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"Invalid '{where}': nested deeper than {MAX_DEPTH} levels.", param=where)
    if isinstance(value, Mapping):
        return {str(k): _copy(v, where, depth + 1) for k, v in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Sequence):
        return [_copy(item, where, depth + 1) for item in value]
    raise InvalidRequest(f"Invalid '{where}': expected JSON values.", param=where, code="invalid_type")


def _shown(value: object) -> str:
    """A caller's value in an error, bounded: an answer must not be larger than the question."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"'{text[:64]}'"
