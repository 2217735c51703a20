"""Which format a model writes its calls in: read off its chat template, else off its architecture, else as set."""

from __future__ import annotations

from gateway.tools.format import ToolFormat
from gateway.tools.gemma import FUNCTION_GEMMA, GEMMA4, GemmaFormat
from gateway.tools.hermes import HermesFormat
from gateway.tools.llama3 import Llama3Format
from gateway.tools.mistral import MistralFormat
from gateway.tools.qwen_xml import QwenXmlFormat

FORMATS: dict[str, ToolFormat] = {
    format_.name: format_
    for format_ in (
        HermesFormat(),
        QwenXmlFormat(),
        Llama3Format(),
        MistralFormat(named_args=False),
        MistralFormat(named_args=True),
        GemmaFormat(GEMMA4),
        GemmaFormat(FUNCTION_GEMMA),
    )
}

# The first sign found in the template decides: `[ARGS]` templates hold `[TOOL_CALLS]` too.
_SIGNS = (
    ("<|tool_call>", "gemma4"),
    ("<start_function_call>", "functiongemma"),
    ("[ARGS]", "mistral_args"),
    ("[TOOL_CALLS]", "mistral"),
    ("<function=", "qwen_xml"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3"),
    ('{"name": function name, "parameters": dictionary', "llama3"),  # Llama 3.2's names no tag
)


def detect_format(chat_template: str | None, *, override: str = "") -> ToolFormat:
    """The format of the model with this template.

    A template without a sign of any format is one that knows no tools: `hermes`, explained in the system message.
    Args: override is an operator's choice, empty for none.
    Raises: ValueError naming an unknown override and the known formats.
    """
    if override:
        if override not in FORMATS:
            raise ValueError(f"tool_format = {override!r}: the known formats are {', '.join(sorted(FORMATS))}")
        return FORMATS[override]
    template = chat_template or ""
    for sign, name in _SIGNS:
        if sign in template:
            return FORMATS[name]
    return FORMATS["hermes"]
