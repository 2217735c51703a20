"""What holds an answer to a shape: `response_format`, tools and `tool_choice` become a grammar for the engine and a
parser for its output. A bad schema is refused here, before anything is queued.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.calls import OutputParser
from gateway.errors import InvalidRequest
from gateway.prompts import TextModel
from gateway.schemas.chat import ChatRequest
from gateway.schemas.common import ResponseFormat


class Plan(msgspec.Struct, frozen=True):
    """`grammar` is a serialised llguidance grammar, None for free text. `new_parser` makes a parser a choice."""

    grammar: str | None = None
    new_parser: Callable[[], OutputParser] | None = None


class Constrainer:
    """Makes plans."""

    def chat(self, data: ChatRequest, model: TextModel) -> Plan:  # noqa: ARG002 - tools and grammars need the model
        """Raises: InvalidRequest naming `response_format`, `tools` or `tool_choice`."""
        _check_tool_choice(data)
        return Plan()

    def completion(self, response_format: ResponseFormat | None, model: TextModel) -> Plan:  # noqa: ARG002
        """Raises: InvalidRequest naming `response_format`."""
        return Plan()


def _check_tool_choice(data: ChatRequest) -> None:
    choice = data.tool_choice
    if choice in (None, "none", "auto"):
        return
    if not data.tools:
        raise InvalidRequest(
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
            param="tool_choice",
            code="invalid_value",
        )
