"""The format is read off the chat template."""

from __future__ import annotations

import pytest

from gateway.tools.registry import detect_format


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("<tool_call>\\n<function=' + name", "qwen_xml"),
        ("{{ '<|python_tag|>' }}", "llama3"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS] [", "mistral"),
        ("'[TOOL_CALLS]' + name + '[ARGS]'", "mistral_args"),
        ("<|tool_call>call:", "gemma4"),
        ("<start_function_call>call:", "functiongemma"),
        ("{% for message in messages %}<|im_start|>", "hermes"),
        (None, "hermes"),
    ],
)
def test_the_template_tells_the_format(template: str | None, name: str) -> None:
    assert detect_format(template).name == name


def test_the_operator_overrides_the_template() -> None:
    assert detect_format("<tool_call>", override="llama3").name == "llama3"


def test_an_unknown_override_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match=r"tool_format = 'pythonic': the known formats are .*hermes"):
        detect_format("", override="pythonic")
