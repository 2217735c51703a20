"""Mistral. Old: `[TOOL_CALLS]` and a JSON list of {"name": "f", "arguments": {...}}. New (tokenizer v11 and later):
`[TOOL_CALLS]f[ARGS]{...}` for every call, with `[CALL_ID]` and nine characters before `[ARGS]` in v11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from gateway.tools.format import (
    BufferedParser,
    ToolSpec,
    could_start,
    lark_marker,
    lark_schema,
    lark_text,
    repeated,
)
from gateway.tools.json_call import JsonCallReader
from gateway.tools.json_span import JsonSpan
from gateway.tools.sink import CallSink

TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_NAME = re.compile(r"[A-Za-z0-9_.:-]*")
_ID = re.compile(r"[A-Za-z0-9]*")
_MAX_NAME_CHARS = 256


class MistralFormat:
    """`named_args`: the model writes `f[ARGS]{...}` rather than a JSON list."""

    markers = (TOOL_CALLS, CALL_ID, ARGS)
    end_marker = ""

    def __init__(self, *, named_args: bool) -> None:
        self.name = "mistral_args" if named_args else "mistral"
        self._named_args = named_args

    def parser(self, sink: CallSink, functions: Mapping[str, Mapping[str, Any]]) -> MistralParser:
        return MistralParser(sink, functions)

    def auto_rule(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int], *, parallel: bool) -> str | None:  # noqa: ARG002
        return None

    def calls_rule(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int], *, parallel: bool) -> str:
        opener = lark_marker(TOOL_CALLS, special_ids)
        rules = []
        if self._named_args:
            rules.append(repeated("call", "", parallel=parallel))
        else:
            rules.append(f"calls: {opener} {lark_text('[')} list {lark_text(']')}")
            rules.append(repeated("call", lark_text(", "), parallel=parallel).replace("calls:", "list:", 1))
        rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
        for number, tool in enumerate(tools):
            if self._named_args:
                separator = lark_marker(ARGS, special_ids)
                rules.append(f"call_{number}: {opener} {lark_text(tool.name)} {separator} args_{number}")
            else:
                head = lark_text(f'{{"name": "{tool.name}", "arguments": ')
                rules.append(f"call_{number}: {head} args_{number} {lark_text('}')}")
            rules.append(f"args_{number}: {lark_schema(tool.parameters)}")
        return "\n".join(rules)


class MistralParser(BufferedParser):
    """Both forms, whichever comes."""

    def __init__(self, sink: CallSink, names: Container[str]) -> None:
        super().__init__(sink, names, (TOOL_CALLS,))
        self._reader = JsonCallReader(sink, names)
        self._name = ""
        self._span = JsonSpan()

    def _after_marker(self, marker: str) -> Callable[[], bool]:  # noqa: ARG002 - there is only one
        return self._list_or_name

    def _list_or_name(self) -> bool:
        stripped = self._buffer.lstrip()
        if not stripped:
            return False
        self._raw += self._take(len(self._buffer) - len(stripped))
        if self._buffer[0] == "[":
            self._raw += self._take(1)
            return self._next_object()
        if self._buffer[0] == "{":
            return self._next_object()
        self._name = ""
        self._state = self._in_name
        return True

    def _next_object(self) -> bool:
        self._reader = JsonCallReader(self._sink, self._names)
        self._state = self._in_object
        return True

    def _in_object(self) -> bool:
        return self._read_json_call(self._reader, self._after_object)

    def _after_object(self) -> bool:
        stripped = self._buffer.lstrip(" \t\r\n,]")
        self._buffer = stripped
        if not stripped:
            return False
        if stripped[0] == "{":
            return self._next_object()
        self._state = self._content
        return True

    def _in_name(self) -> bool:
        match = _NAME.match(self._buffer)
        assert match is not None  # it matches the empty text too
        part = self._take(match.end())
        self._name += part
        self._raw += part
        if len(self._name) > _MAX_NAME_CHARS:
            return self._give_up()
        if not self._buffer:
            return False
        if self._name not in self._names:
            return self._give_up()
        self._state = self._before_arguments
        return True

    def _before_arguments(self) -> bool:
        for marker, state in ((CALL_ID, self._in_id), (ARGS, self._before_arguments)):
            if self._buffer.startswith(marker):
                self._raw += self._take(len(marker))
                self._state = state
                return True
        if not self._buffer.strip() or could_start(self._buffer, CALL_ID) or could_start(self._buffer, ARGS):
            return False
        stripped = self._buffer.lstrip()
        if stripped[0] != "{":
            return self._give_up()
        self._take(len(self._buffer) - len(stripped))
        self._raw = ""
        self._sink.begin(self._name)
        self._span = JsonSpan()
        self._state = self._in_arguments
        return True

    def _in_id(self) -> bool:
        """The model's own id is not used: clients get ours, which are unique."""
        match = _ID.match(self._buffer)
        assert match is not None  # it matches the empty text too
        self._raw += self._take(match.end())
        if not self._buffer:
            return False
        self._state = self._before_arguments
        return True

    def _in_arguments(self) -> bool:
        self._sink.arguments(self._take(self._span.feed(self._buffer, 0)))
        if self._span.broken:
            self._sink.end()
            self._state = self._content
            return True
        if not self._span.done:
            return False
        self._sink.end()
        self._state = self._content
        return True

    def finish(self) -> None:
        if self._state == self._after_object:
            self._buffer = ""
        waits = self._state in (self._in_name, self._before_arguments) and not self._buffer.strip()
        if waits and self._name in self._names:  # a call without arguments
            self._raw = ""
            self._sink.begin(self._name)
            self._sink.end()
        super().finish()
