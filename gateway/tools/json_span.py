"""Where a JSON value ends, found while its text is still coming in."""

from __future__ import annotations

import re

MAX_DEPTH = 100

_OUTSIDE = re.compile(r'[\[\]{}"]')
_INSIDE = re.compile(r'["\\]')
_CLOSER = {"{": "}", "[": "]"}


class JsonSpan:
    """Follows one object, array or string from its first character on. It matches brackets and quotes, no more:
    what stands between them is the caller's to check."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self.done = False
        self.broken = False

    def feed(self, text: str, pos: int) -> int:
        """Consumes from `pos`; returns the position after the last character that belongs to the value.

        Sets `done` once the value is closed and `broken` at a bracket that closes nothing or nests too deep.
        """
        while pos < len(text) and not (self.done or self.broken):
            pos = self._string(text, pos) if self._in_string else self._structure(text, pos)
        return pos

    def _string(self, text: str, pos: int) -> int:
        if self._escaped:
            self._escaped = False
            return pos + 1
        match = _INSIDE.search(text, pos)
        if match is None:
            return len(text)
        if match[0] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.done = not self._closers
        return match.end()

    def _structure(self, text: str, pos: int) -> int:
        match = _OUTSIDE.search(text, pos)
        if match is None:
            return len(text)
        char = match[0]
        if char == '"':
            self._in_string = True
        elif char in _CLOSER:
            self._closers.append(_CLOSER[char])
            self.broken = len(self._closers) > MAX_DEPTH
        elif not self._closers or self._closers.pop() != char:
            self.broken = True
            return match.start()
        else:
            self.done = not self._closers
        return match.end()
