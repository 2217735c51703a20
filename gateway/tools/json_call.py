"""Reads one call written as a JSON object, `{"name": "f", "arguments": {...}}`, while its text is coming in.

The call is announced as soon as its name and the beginning of its arguments are there; arguments pass through as they
were written. A key order with the arguments first, `parameters` in their place, arguments written as a JSON text, and
further keys (`id`, `type`) are taken too, because models write them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from enum import Enum

from gateway.tools.json_span import JsonSpan
from gateway.tools.sink import CallSink

_ARGUMENT_KEYS = ("arguments", "parameters")
_CALL_KEYS = frozenset({"name", "id", "type", *_ARGUMENT_KEYS})
_SPACE = " \t\r\n"
_SCALAR = re.compile(r"[-+0-9.A-Za-z]*")
_MAX_HELD_CHARS = 65536  # of a name or of arguments that come before the name


class Status(Enum):
    """`BROKEN`: what came is no call; the text up to the offending character was consumed."""

    OPEN = "open"
    DONE = "done"
    BROKEN = "broken"


class JsonCallReader:
    """One object. `names` are the functions that may be called; another name breaks the call."""

    def __init__(self, sink: CallSink, names: Container[str], *, only_call_keys: bool = False) -> None:
        """Args: only_call_keys breaks at a key that no call has: for text that may be an answer in JSON instead."""
        self._sink = sink
        self._names = names
        self._only_call_keys = only_call_keys
        self._state: Callable[[str, int], int] = self._open
        self._span = JsonSpan()
        self._held: list[str] = []
        self._num_held = 0
        self._key = ""
        self._name: str | None = None
        self._arguments: str | None = None  # held back until the name is there
        self._has_arguments = False
        self.announced = False
        self.status = Status.OPEN

    def feed(self, text: str, pos: int = 0) -> int:
        """Consumes from `pos`; returns where it stopped: behind the object's end, or at what broke it."""
        while pos < len(text) and self.status is Status.OPEN:
            pos = self._state(text, pos)
        return pos

    def _break(self, pos: int) -> int:
        self.status = Status.BROKEN
        return pos

    def _open(self, text: str, pos: int) -> int:
        pos = _skip_space(text, pos)
        if pos == len(text):
            return pos
        if text[pos] != "{":
            return self._break(pos)
        self._state = self._first_key
        return pos + 1

    def _first_key(self, text: str, pos: int) -> int:
        return self._key_or(text, pos, closer=True)

    def _next_key(self, text: str, pos: int) -> int:
        return self._key_or(text, pos, closer=False)

    def _key_or(self, text: str, pos: int, *, closer: bool) -> int:
        pos = _skip_space(text, pos)
        if pos == len(text):
            return pos
        if closer and text[pos] == "}":
            return self._close(pos)
        if text[pos] != '"':
            return self._break(pos)
        self._start_span(self._in_key)
        return pos

    def _start_span(self, state: Callable[[str, int], int]) -> None:
        self._span = JsonSpan()
        self._held = []
        self._num_held = 0
        self._state = state

    def _hold(self, text: str, pos: int) -> int:
        """Consumes the span's next part and keeps it; breaks the call where the span breaks or grows too long."""
        end = self._span.feed(text[: pos + _MAX_HELD_CHARS - self._num_held], pos)
        self._keep(text[pos:end])
        if self._span.broken or (self._num_held == _MAX_HELD_CHARS and not self._span.done):
            return self._break(end)
        return end

    def _keep(self, part: str) -> None:
        self._held.append(part)
        self._num_held += len(part)

    def _in_key(self, text: str, pos: int) -> int:
        end = self._hold(text, pos)
        if self.status is Status.OPEN and self._span.done:
            key = _decoded("".join(self._held))
            if not isinstance(key, str) or self._refuses(key):
                return self._break(end)
            self._key = key
            self._state = self._colon
        return end

    def _refuses(self, key: str) -> bool:
        if key == "name":
            return self._name is not None
        if key in _ARGUMENT_KEYS:
            return self._has_arguments
        return self._only_call_keys and key not in _CALL_KEYS

    def _colon(self, text: str, pos: int) -> int:
        pos = _skip_space(text, pos)
        if pos == len(text):
            return pos
        if text[pos] != ":":
            return self._break(pos)
        self._state = self._value
        return pos + 1

    def _value(self, text: str, pos: int) -> int:
        pos = _skip_space(text, pos)
        if pos == len(text):
            return pos
        if text[pos] == "{" and self._key in _ARGUMENT_KEYS and self._name is not None:
            self._announce(self._name)
            self._start_span(self._in_arguments)
        elif text[pos] in '{["':
            self._start_span(self._in_value)
        else:
            self._start_span(self._in_scalar)
        return pos

    def _in_arguments(self, text: str, pos: int) -> int:
        end = self._span.feed(text, pos)
        self._sink.arguments(text[pos:end])
        if self._span.broken:
            self._sink.end()
            return self._break(end)
        if self._span.done:
            self._has_arguments = True
            self._sink.end()
            self._state = self._after_value
        return end

    def _in_value(self, text: str, pos: int) -> int:
        end = self._hold(text, pos)
        if self.status is Status.OPEN and self._span.done:
            return self._take_value("".join(self._held), end)
        return end

    def _in_scalar(self, text: str, pos: int) -> int:
        match = _SCALAR.match(text, pos, pos + _MAX_HELD_CHARS - self._num_held)
        assert match is not None  # it matches the empty text too
        self._keep(match[0])
        if match.end() == len(text) and self._num_held < _MAX_HELD_CHARS:
            return match.end()
        return self._take_value("".join(self._held), match.end())

    def _take_value(self, raw: str, end: int) -> int:
        value = _decoded(raw)
        if value is _NOTHING:
            return self._break(end)
        self._state = self._after_value
        if self._key == "name":
            if not isinstance(value, str) or value not in self._names:
                return self._break(end)
            self._name = value
            if self._arguments is not None:
                self._announce(value)
                self._sink.arguments(self._arguments)
                self._sink.end()
        elif self._key in _ARGUMENT_KEYS:
            return self._take_arguments(value, raw, end)
        return end

    def _take_arguments(self, value: object, raw: str, end: int) -> int:
        """Arguments that did not stream: written before the name, or as a JSON text, or null."""
        if isinstance(value, str):
            inner = value.strip() or "{}"
            if not isinstance(_decoded(inner), dict):
                return self._break(end)
            raw = inner
        elif value is None:
            raw = "{}"
        elif not isinstance(value, dict):
            return self._break(end)
        self._has_arguments = True
        if self._name is None:
            self._arguments = raw
            return end
        self._announce(self._name)
        self._sink.arguments(raw)
        self._sink.end()
        return end

    def _after_value(self, text: str, pos: int) -> int:
        pos = _skip_space(text, pos)
        if pos == len(text):
            return pos
        if text[pos] == "}":
            return self._close(pos)
        if text[pos] != ",":
            return self._break(pos)
        self._state = self._next_key
        return pos + 1

    def _close(self, pos: int) -> int:
        if self._name is None:
            return self._break(pos)
        if not self._has_arguments:
            self._announce(self._name)
            self._sink.end()
        self.status = Status.DONE
        return pos + 1

    def _announce(self, name: str) -> None:
        self.announced = True
        self._sink.begin(name)


_NOTHING = object()


def _decoded(raw: str) -> object:
    """The value, or `_NOTHING` when `raw` is no JSON."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return _NOTHING


def _skip_space(text: str, pos: int) -> int:
    while pos < len(text) and text[pos] in _SPACE:
        pos += 1
    return pos
