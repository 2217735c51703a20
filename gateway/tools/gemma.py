"""Gemma 4: `<|tool_call>call:f{key:<|"|>text<|"|>,n:3}<tool_call|>`; FunctionGemma: the same with other markers.

Not JSON: keys are bare and strings stand between quote markers without escapes. It is turned into JSON on the way,
character for character. JSON strings are understood as well, because a forced call is constrained to JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import msgspec

from gateway.tools.format import (
    BufferedParser,
    ToolSpec,
    could_start,
    lark_marker,
    lark_schema,
    lark_text,
    partial_length,
    repeated,
)
from gateway.tools.json_span import MAX_DEPTH, JsonSpan
from gateway.tools.sink import CallSink

_CALL = "call:"
_NAME = re.compile(r"[A-Za-z0-9_.:-]*")
_BARE_KEY = re.compile(r"[^:,{}\[\]\"]*")
_BARE_VALUE = re.compile(r"[^,{}\[\]\"]*")
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_MAX_BARE_CHARS = 4096


class Dialect(msgspec.Struct, frozen=True):
    """The three markers of one generation of the family."""

    name: str
    opener: str
    closer: str
    quote: str


GEMMA4 = Dialect("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = Dialect("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>")


class GemmaFormat:
    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.name = dialect.name
        self.markers = (dialect.opener, dialect.closer, dialect.quote)
        self.end_marker = dialect.closer

    def parser(self, sink: CallSink, functions: Mapping[str, Mapping[str, Any]]) -> GemmaParser:
        return GemmaParser(sink, functions, self._dialect)

    def auto_rule(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int], *, parallel: bool) -> str | None:  # noqa: ARG002
        return None

    def calls_rule(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int], *, parallel: bool) -> str:
        opener = lark_marker(self._dialect.opener, special_ids)
        closer = lark_marker(self._dialect.closer, special_ids)
        bodies = " | ".join(f"call_{number}" for number in range(len(tools)))
        rules = [repeated("call", "", parallel=parallel), f"call: {opener} ({bodies}) {closer}"]
        for number, tool in enumerate(tools):
            rules.append(f"call_{number}: {lark_text(_CALL + tool.name)} args_{number}")
            rules.append(f"args_{number}: {lark_schema(tool.parameters)}")
        return "\n".join(rules)


class GemmaParser(BufferedParser):
    def __init__(self, sink: CallSink, names: Container[str], dialect: Dialect) -> None:
        super().__init__(sink, names, (dialect.opener, dialect.closer))
        self._dialect = dialect
        self._name = ""
        self._stack: list[str] = []  # the brackets that are open
        self._span = JsonSpan()
        self._string_is_key = False
        self._first = True  # nothing stands in the innermost bracket yet

    def _after_marker(self, marker: str) -> Callable[[], bool]:
        if marker == self._dialect.closer:  # behind a call that broke off
            if self._sink.num_calls:
                self._raw = ""
            return self._give_up
        self._name = ""
        return self._call_word

    def _call_word(self) -> bool:
        if could_start(self._buffer, _CALL):
            return False
        if not self._buffer.startswith(_CALL):
            return self._give_up()
        self._raw += self._take(len(_CALL))
        self._state = self._in_name
        return True

    def _in_name(self) -> bool:
        match = _NAME.match(self._buffer)
        assert match is not None  # it matches the empty text too
        part = self._take(match.end())
        self._name += part
        self._raw += part
        if not self._buffer:
            return False
        if self._buffer[0] != "{" or self._name not in self._names:
            return self._give_up()
        self._raw = ""
        self._sink.begin(self._name)
        return self._open_bracket()

    def _open_bracket(self) -> bool:
        if len(self._stack) >= MAX_DEPTH:
            return self._break_off()
        bracket = self._take(1)
        self._stack.append(bracket)
        self._sink.arguments(bracket)
        self._first = True
        self._state = self._item
        return True

    def _close_bracket(self) -> bool:
        bracket = self._take(1)
        if {"{": "}", "[": "]"}[self._stack.pop()] != bracket:
            return self._break_off()
        self._sink.arguments(bracket)
        self._first = False
        self._state = self._after_item
        if not self._stack:
            self._sink.end()
            self._state = self._after_call
        return True

    def _break_off(self) -> bool:
        """The call was announced already: it ends where it stopped making sense."""
        self._sink.end()
        self._stack = []
        self._state = self._content
        return True

    def _item(self) -> bool:
        """A key in an object, a value in a list, or the bracket's end."""
        self._skip_space()
        if not self._buffer:
            return False
        if self._buffer[0] in "]}":
            return self._close_bracket()
        if not self._first:
            self._sink.arguments(",")
        self._first = False
        self._state = self._key if self._stack[-1] == "{" else self._value
        return True

    def _key(self) -> bool:
        if could_start(self._buffer, self._dialect.quote):
            return False
        return self._quoted(is_key=True) or self._bare_key()

    def _quoted(self, *, is_key: bool) -> bool:
        """Begins a string that stands in quotes of either kind."""
        quote = self._dialect.quote
        if self._buffer.startswith(quote):
            self._take(len(quote))
            self._sink.arguments('"')
            self._string_is_key = is_key
            self._state = self._in_string
            return True
        if self._buffer[0] == '"':
            self._span = JsonSpan()
            self._string_is_key = is_key
            self._state = self._in_json_string
            return True
        return False

    def _bare_key(self) -> bool:
        match = _BARE_KEY.match(self._buffer)
        assert match is not None  # it matches the empty text too
        if match.end() == len(self._buffer):
            return False if len(self._buffer) <= _MAX_BARE_CHARS else self._break_off()
        if self._buffer[match.end()] != ":":
            return self._break_off()
        self._sink.arguments(json.dumps(self._take(match.end()).strip(), ensure_ascii=False))
        self._state = self._colon
        return True

    def _in_string(self) -> bool:
        quote = self._dialect.quote
        end = self._buffer.find(quote)
        if end < 0:
            keep = partial_length(self._buffer, (quote,))
            self._sink.arguments(_escaped(self._take(len(self._buffer) - keep)))
            return False
        self._sink.arguments(_escaped(self._take(end)) + '"')
        self._take(len(quote))
        self._state = self._colon if self._string_is_key else self._after_item
        return True

    def _in_json_string(self) -> bool:
        self._sink.arguments(self._take(self._span.feed(self._buffer, 0)))
        if not self._span.done:
            return False
        self._state = self._colon if self._string_is_key else self._after_item
        return True

    def _colon(self) -> bool:
        self._skip_space()
        if not self._buffer:
            return False
        if self._buffer[0] != ":":
            return self._break_off()
        self._take(1)
        self._sink.arguments(":")
        self._state = self._value
        return True

    def _value(self) -> bool:
        self._skip_space()
        if not self._buffer or could_start(self._buffer, self._dialect.quote):
            return False
        if self._buffer[0] in "{[":
            return self._open_bracket()
        return self._quoted(is_key=False) or self._bare_value()

    def _bare_value(self) -> bool:
        match = _BARE_VALUE.match(self._buffer)
        assert match is not None  # it matches the empty text too
        if match.end() == len(self._buffer):
            return False if len(self._buffer) <= _MAX_BARE_CHARS else self._break_off()
        word = self._take(match.end()).strip()
        if not word:
            return self._break_off()
        self._sink.arguments(word if _SCALAR.fullmatch(word) else json.dumps(word, ensure_ascii=False))
        self._state = self._after_item
        return True

    def _after_item(self) -> bool:
        self._skip_space()
        if not self._buffer:
            return False
        if self._buffer[0] in "]}":
            return self._close_bracket()
        if self._buffer[0] != ",":
            return self._break_off()
        self._take(1)
        self._state = self._item
        return True

    def _after_call(self) -> bool:
        self._skip_space()
        if not self._buffer or could_start(self._buffer, self._dialect.closer):
            return False
        if self._buffer.startswith(self._dialect.closer):
            self._take(len(self._dialect.closer))
        self._state = self._content
        return True

    def finish(self) -> None:
        if self._state == self._after_call:
            self._buffer = ""
        super().finish()


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
