"""Qwen3-Coder and Qwen3.5: tags inside the Hermes tags, one `<parameter=key>` an argument, values as bare text.

Bare text has no types, so a value becomes what the function's schema says it is: text for strings, JSON for the rest.
A forced call is constrained to the Hermes format's JSON, which this parser reads as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.tools.format import could_start, partial_length
from gateway.tools.hermes import HermesFormat, HermesParser
from gateway.tools.sink import CallSink

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_MAX_NAME_CHARS = 256
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}  # models trained on Python write them


class QwenXmlFormat(HermesFormat):
    name = "qwen_xml"

    def parser(self, sink: CallSink, functions: Mapping[str, Mapping[str, Any]]) -> QwenXmlParser:
        return QwenXmlParser(sink, functions)


class QwenXmlParser(HermesParser):
    def __init__(self, sink: CallSink, functions: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(sink, functions)
        self._functions = functions
        self._name = ""
        self._key = ""
        self._num_arguments = 0

    def _list_or_call(self) -> bool:
        stripped = self._buffer.lstrip()
        if not stripped or could_start(stripped, _FUNCTION):
            return False
        if not stripped.startswith(_FUNCTION):
            return super()._list_or_call()
        self._raw += self._take(len(self._buffer) - len(stripped) + len(_FUNCTION))
        self._state = self._function_name
        return True

    def _function_name(self) -> bool:
        end = self._buffer.find(">")
        if end < 0:
            return self._give_up() if len(self._buffer) > _MAX_NAME_CHARS else False
        name = self._buffer[:end].strip()
        if name not in self._functions:
            return self._give_up()
        self._take(end + 1)
        self._raw = ""
        self._name, self._num_arguments = name, 0
        self._sink.begin(name)
        self._sink.arguments("{")
        self._state = self._parameter
        return True

    def _parameter(self) -> bool:
        self._skip_space()
        if not self._buffer or could_start(self._buffer, _PARAMETER) or could_start(self._buffer, _FUNCTION_END):
            return False
        if self._buffer.startswith(_PARAMETER):
            end = self._buffer.find(">")
            if end < 0 and len(self._buffer) <= _MAX_NAME_CHARS:
                return False
            if end >= 0:
                self._key = self._buffer[len(_PARAMETER) : end].strip()
                self._take(end + 1)
                self._begin_value()
                return True
        ended = self._buffer.startswith(_FUNCTION_END)
        if ended:
            self._take(len(_FUNCTION_END))
        self._sink.arguments("}")
        self._sink.end()
        self._state = self._after_call if ended else self._content
        return True

    def _begin_value(self) -> None:
        separator = ", " if self._num_arguments else ""
        self._num_arguments += 1
        self._sink.arguments(f"{separator}{json.dumps(self._key, ensure_ascii=False)}: ")
        self._state = self._string_begin if self._kind() == "string" else self._value

    def _string_begin(self) -> bool:
        if self._buffer[0] == "\n":  # the template writes values on lines of their own
            self._take(1)
        self._sink.arguments('"')
        self._state = self._string
        return True

    def _string(self) -> bool:
        """A text goes out as it comes, but for what may be the closing tag and the line break before it."""
        end = self._buffer.find(_PARAMETER_END)
        if end < 0:
            held = partial_length(self._buffer, (_PARAMETER_END,))
            held += self._buffer[: len(self._buffer) - held].endswith("\n")
            self._sink.arguments(_escaped(self._take(len(self._buffer) - held)))
            return False
        self._sink.arguments(_escaped(self._take(end).removesuffix("\n")) + '"')
        self._take(len(_PARAMETER_END))
        self._state = self._parameter
        return True

    def _value(self) -> bool:
        """Waits for the whole value: what it is can be told from its end only."""
        end = self._buffer.find(_PARAMETER_END)
        if end < 0:
            return False
        text = self._take(end)
        self._take(len(_PARAMETER_END))
        self._sink.arguments(self._converted(_unwrapped(text)))
        self._state = self._parameter
        return True

    def _converted(self, text: str) -> str:
        """The value as JSON. What is no JSON stays text, whatever the schema says: the client sees what was meant."""
        literal = _PYTHON_WORDS.get(text.strip(), text.strip())
        try:
            json.loads(literal)
        except (ValueError, RecursionError):
            return json.dumps(text, ensure_ascii=False)
        return literal

    def _kind(self) -> Any:
        """The type that the function's schema gives the argument."""
        properties = self._functions[self._name].get("properties")
        schema = properties.get(self._key) if isinstance(properties, Mapping) else None
        return schema.get("type") if isinstance(schema, Mapping) else None


def _escaped(text: str) -> str:
    """A part of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _unwrapped(text: str) -> str:
    """The template writes values on lines of their own."""
    return text.removeprefix("\n").removesuffix("\n")
