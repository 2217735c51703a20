"""What a tool-call format is: a parser for one choice's text, and a grammar for calls that must be made.

A parser is a state machine over a buffer. A state takes what is certain from the buffer's front and says whether it
got anywhere; what remains is held back only because the next characters decide what it is. So the outcome does not
depend on how the text was split.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from gateway.tools.json_call import JsonCallReader, Status
from gateway.tools.sink import CallSink

MAX_HELD_SPACE = 64
MAX_FORCED_CALLS = 8  # a grammar's repetition needs an end: a small model may never choose to stop


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A function as the grammar needs it. `parameters` is a JSON schema of an object."""

    name: str
    parameters: dict[str, Any]


class FormatParser(Protocol):
    """Reads one choice's text into its sink."""

    def feed(self, text: str) -> None:
        """The next characters."""

    def finish(self) -> None:
        """The text is over: what was held back is decided now."""


class ToolFormat(Protocol):
    """One model family's way to write calls."""

    @property
    def name(self) -> str: ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Spellings that are control tokens in the family's vocabularies."""

    @property
    def end_marker(self) -> str:
        """What ends a call; empty where nothing does."""

    def parser(self, sink: CallSink, functions: Mapping[str, Mapping[str, Any]]) -> FormatParser:
        """A parser for one choice. `functions` maps the names that may be called to their parameters' schemas."""

    def calls_rule(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int], *, parallel: bool) -> str:
        """Lark rules for one or more calls, the first one named `calls`, ready to be joined to a `start` rule.

        Args: special_ids gives the ids of markers that are control tokens: they are asked for by id, because the
        same letters as plain tokens are not what the model was taught to write.
        """

    def auto_rule(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int], *, parallel: bool) -> str | None:
        """Lark rules, the first one named `start`, for free text in which every call that begins is held to its schema;
        None where nothing in the format says for certain that a call begins."""


class BufferedParser:
    """The machine: `_state` consumes from `_buffer`; subclasses start in `_content`."""

    def __init__(self, sink: CallSink, names: Container[str], markers: Sequence[str]) -> None:
        self._sink = sink
        self._names = names
        self._markers = tuple(markers)
        self._buffer = ""
        self._raw = ""  # what was consumed since a marker, while it may still turn out to be content
        self._state: Callable[[], bool] = self._content

    def feed(self, text: str) -> None:
        self._buffer += text
        while self._buffer and self._state():
            pass

    def finish(self) -> None:
        """A call that was not announced was no call: its text is content. Space around calls is nobody's."""
        rest, self._raw, self._buffer = self._raw + self._buffer, "", ""
        if not self._sink.is_open and (rest.strip() or not self._sink.num_calls):
            self._sink.text(rest)

    def _content(self) -> bool:
        found = find_marker(self._buffer, self._markers)
        if found is None:
            keep = held_length(self._buffer, self._markers)
            self._sink.text(self._buffer[: len(self._buffer) - keep])
            self._buffer = self._buffer[len(self._buffer) - keep :]
            return False
        start, marker = found
        before = self._buffer[: start - space_length(self._buffer[:start])]
        self._sink.text(before)
        self._raw = self._buffer[len(before) : start + len(marker)]
        self._buffer = self._buffer[start + len(marker) :]
        self._state = self._after_marker(marker)
        return True

    def _after_marker(self, marker: str) -> Callable[[], bool]:
        """The state that reads what follows `marker`."""
        raise NotImplementedError

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _give_up(self) -> bool:
        """It was no call: what was held is content."""
        self._sink.text(self._raw)
        self._raw = ""
        self._state = self._content
        return True

    def _read_json_call(self, reader: JsonCallReader, then: Callable[[], bool]) -> bool:
        """Feeds the buffer to the reader; afterwards the state is `then`, or content where it broke."""
        taken = self._take(reader.feed(self._buffer))
        self._raw = "" if reader.announced else self._raw + taken
        if reader.status is Status.OPEN:
            return False
        if reader.status is Status.BROKEN:
            return self._give_up()
        self._state = then
        return True

    def _skip_space(self) -> None:
        self._buffer = self._buffer.lstrip()


def find_marker(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """The first marker in `text` with its position; of two at one place the longer one."""
    hits = [(text.find(marker), -len(marker), marker) for marker in markers]
    hits = [hit for hit in hits if hit[0] >= 0]
    if not hits:
        return None
    start, _, marker = min(hits)
    return start, marker


def partial_length(text: str, markers: Sequence[str]) -> int:
    """The length of the longest proper beginning of a marker that `text` ends with."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest


def space_length(text: str) -> int:
    """White space at the end of `text` that would belong to a marker behind it, at most MAX_HELD_SPACE characters."""
    tail = text[-MAX_HELD_SPACE:]
    return len(tail) - len(tail.rstrip())


def held_length(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of `text` may belong to a marker, the white space before it included."""
    partial = partial_length(text, markers)
    return partial + space_length(text[: len(text) - partial])


def could_start(text: str, marker: str) -> bool:
    """True when `text` is a proper beginning of `marker`."""
    return len(text) < len(marker) and marker.startswith(text)


def lark_text(text: str) -> str:
    """`text` as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def lark_marker(marker: str, special_ids: Mapping[str, int]) -> str:
    """A marker in a Lark rule: by token id where it is a control token, else its letters."""
    return f"<[{special_ids[marker]}]>" if marker in special_ids else lark_text(marker)


def lark_schema(schema: Mapping[str, Any]) -> str:
    """A JSON schema inside a Lark rule."""
    return "%json " + json.dumps(schema, ensure_ascii=False)


def repeated(call: str, separator: str, *, parallel: bool) -> str:
    """The `calls` rule: one call, or up to MAX_FORCED_CALLS with a separator between them."""
    return f"calls: {call} ({separator} {call}){{0,{MAX_FORCED_CALLS - 1}}}" if parallel else f"calls: {call}"
