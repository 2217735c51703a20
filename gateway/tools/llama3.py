"""Llama 3.1 to 3.3: the whole answer is {"name": "f", "parameters": {...}}, after `<|python_tag|>` or bare; several
are separated by semicolons.

Bare, it can only be told from an answer in JSON by its keys and by the function's name, so both are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from gateway.tools.format import BufferedParser, ToolSpec, lark_schema, lark_text, repeated
from gateway.tools.json_call import JsonCallReader
from gateway.tools.sink import CallSink

PYTHON_TAG = "<|python_tag|>"


class Llama3Format:
    name = "llama3"
    markers = (PYTHON_TAG,)
    end_marker = ""

    def parser(self, sink: CallSink, functions: Mapping[str, Mapping[str, Any]]) -> Llama3Parser:
        return Llama3Parser(sink, functions)

    def auto_rule(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int], *, parallel: bool) -> str | None:  # noqa: ARG002
        return None

    def calls_rule(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int], *, parallel: bool) -> str:  # noqa: ARG002 - bare calls need no marker
        rules = [
            repeated("call", lark_text("; "), parallel=parallel),
            "call: " + " | ".join(f"call_{number}" for number in range(len(tools))),
        ]
        for number, tool in enumerate(tools):
            head = lark_text(f'{{"name": "{tool.name}", "parameters": ')
            rules.append(f"call_{number}: {head} args_{number} {lark_text('}')}")
            rules.append(f"args_{number}: {lark_schema(tool.parameters)}")
        return "\n".join(rules)


class Llama3Parser(BufferedParser):
    def __init__(self, sink: CallSink, names: Container[str]) -> None:
        super().__init__(sink, names, (PYTHON_TAG,))
        self._reader = JsonCallReader(sink, names)
        self._state = self._at_start

    def _at_start(self) -> bool:
        stripped = self._buffer.lstrip()
        if not stripped:
            return False
        if stripped[0] != "{":
            self._state = self._content
            return True
        self._raw = self._take(len(self._buffer) - len(stripped))
        return self._next_call()

    def _after_marker(self, marker: str) -> Callable[[], bool]:  # noqa: ARG002 - there is only one
        self._next_call()
        return self._in_call

    def _next_call(self) -> bool:
        self._reader = JsonCallReader(self._sink, self._names, only_call_keys=True)
        self._state = self._in_call
        return True

    def _in_call(self) -> bool:
        return self._read_json_call(self._reader, self._after_call)

    def _after_call(self) -> bool:
        stripped = self._buffer.lstrip(" \t\r\n;")
        if not stripped:
            return False
        self._raw = self._take(len(self._buffer) - len(stripped))
        if stripped[0] == "{":
            return self._next_call()
        return self._give_up()

    def finish(self) -> None:
        if self._state == self._after_call:
            self._buffer = ""
        super().finish()
