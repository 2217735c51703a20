"""Tools for a template that knows none: explained in the system message, in the Hermes format's words.

Calls and results of earlier turns become text in the same format, so that the model sees its own habits.
"""

from __future__ import annotations

import json
from typing import Any

_EXPLANATION = """You may call one or more functions to help with the user's request.

The functions are described as JSON within <tools></tools> tags:
<tools>
{tools}
</tools>

For each function call, answer with a JSON object of the function's name and arguments within <tool_call></tool_call> \
tags:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def explain_tools(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the tools in the system message, which comes first where there is one.

    Args: messages in the plain shape templates get, tools as OpenAI's API has them. They are not changed.
    """
    described = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    explanation = _EXPLANATION.format(tools=described)
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{explanation}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": explanation}, *messages]


def flatten_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls in their tags behind the assistant's words; results that follow each other as one user message."""
    out: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if after_result:
                out[-1] = {"role": "user", "content": f"{out[-1]['content']}\n{text}"}
            else:
                out.append({"role": "user", "content": text})
        elif message.get("tool_calls"):
            out.append(_with_call_text(message))
        else:
            out.append(message)
        after_result = is_result
    return out


def _with_call_text(message: dict[str, Any]) -> dict[str, Any]:
    calls = "\n".join(_call_text(call["function"]) for call in message["tool_calls"])
    words = message.get("content") or ""
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": f"{words}\n{calls}" if words else calls}


def _call_text(function: dict[str, Any]) -> str:
    body = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"
