"""What holds an answer to a shape: `response_format`, tools and `tool_choice` become a grammar for the engine and a
parser for its output. A bad schema is refused here, before anything is queued.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.chat_messages import TemplateTraits, normalise_messages
from gateway.prompts import TextModel
from gateway.schemas.chat import ChatRequest
from gateway.schemas.common import ResponseFormat
from gateway.structured import response_grammar
from gateway.tools.format import ToolFormat
from gateway.tools.plan import OutputPlan, plan_output
from gateway.tools.prompting import explain_tools, flatten_calls
from gateway.tools.registry import detect_format


class Constrainer:
    """Makes plans. `tool_format` is the operator's choice for every model, empty reads it off each template."""

    def __init__(self, *, tool_format: str = "") -> None:
        """Raises: ValueError for an unknown format."""
        detect_format(None, override=tool_format)
        self._override = tool_format
        self._of_model: dict[str, tuple[ToolFormat, Mapping[str, int]]] = {}

    def chat(self, data: ChatRequest, model: TextModel) -> OutputPlan:
        """Raises: InvalidRequest naming `response_format`, `tools` or `tool_choice`."""
        format_, special_ids = self._known(model)
        return plan_output(data, format_, special_ids)

    def completion(self, response_format: ResponseFormat | None, model: TextModel) -> OutputPlan:  # noqa: ARG002
        """Raises: InvalidRequest naming `response_format`."""
        return OutputPlan(grammar=response_grammar(response_format))

    def _known(self, model: TextModel) -> tuple[ToolFormat, Mapping[str, int]]:
        known = self._of_model.get(model.info.name)
        if known is None:
            tokenizer = model.tokenizer
            ids = ((spelling, tokenizer.token_to_id(spelling)) for spelling in tokenizer.special_spellings)
            special_ids = {spelling: token_id for spelling, token_id in ids if token_id is not None}
            source = model.template.source if model.template is not None else None
            known = self._of_model[model.info.name] = detect_format(source, override=self._override), special_ids
        return known


def prompt_parts(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, model: TextModel
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages and tools as this model's template can show them: what it does not know is put into words."""
    template = model.template
    if template is None:
        return messages, tools
    in_words = tools is not None and not template.reads_tools
    has_calls = any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)
    flat = has_calls and "tool_calls" not in template.source
    if not (in_words or flat):
        return messages, tools
    plain = normalise_messages(messages, TemplateTraits())
    if flat:
        plain = flatten_calls(plain)
    if in_words and tools is not None:
        return explain_tools(plain, tools), None
    return plain, tools
