"""What OpenAI checks across messages; each message's own shape is mended or refused by `engine.chat_messages`."""

from __future__ import annotations

from gateway.errors import InvalidRequest
from gateway.schemas.chat import Message


def check_turns(messages: list[Message]) -> None:
    """A tool's result must follow a call, and name one. Raises: InvalidRequest with OpenAI's words."""
    called = False
    ids: set[str] = set()
    for index, message in enumerate(messages):
        if message.tool_calls:
            if message.role != "assistant":
                raise InvalidRequest(
                    f"Invalid 'messages[{index}].tool_calls': only messages with role 'assistant' can have tool calls.",
                    param=f"messages[{index}].tool_calls",
                    code="invalid_value",
                )
            called = True
            ids |= {call.id for call in message.tool_calls if call.id}
        if message.role == "tool":
            _check_result(message, index, called=called, ids=ids)


def _check_result(message: Message, index: int, *, called: bool, ids: set[str]) -> None:
    if not called:
        raise InvalidRequest(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
            "'tool_calls'.",
            param=f"messages.[{index}].role",
        )
    name = f"messages[{index}].tool_call_id"
    if not message.tool_call_id:
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if ids and message.tool_call_id not in ids:
        raise InvalidRequest(
            f"Invalid parameter: '{name}' must be the id of a preceding tool call.", param=name, code="invalid_value"
        )
