"""Hermes and Qwen 2.5/3: `<tool_call>` {"name": "f", "arguments": {...}} `</tool_call>`, one pair of tags a call.

Also the format for models whose template knows no tools (`prompting.py` explains it to them).
"""

from __future__ import annotations

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
from gateway.tools.sink import CallSink

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesFormat:
    name = "hermes"
    markers = (OPEN, CLOSE)
    end_marker = CLOSE

    def parser(self, sink: CallSink, functions: Mapping[str, Mapping[str, Any]]) -> HermesParser:
        return HermesParser(sink, functions)

    def calls_rule(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int], *, parallel: bool) -> str:
        opener = lark_marker(OPEN, special_ids)
        calls = repeated("call", lark_text("\n"), parallel=parallel)
        return "\n".join((calls, f"call: {opener} call_rest", *_rest_of_call(tools, special_ids)))

    def auto_rule(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int], *, parallel: bool) -> str | None:
        # A lazy lexeme ends where its text first does, so free text never runs over an opening tag.
        is_token = OPEN in special_ids
        head = f"FREE_TEXT {lark_marker(OPEN, special_ids)}"
        begun = f"call_head: {head}" if is_token else f"call_head[lazy]: {head}"
        return "\n".join(
            (
                f"start: call{'*' if parallel else '?'} free_text",
                "free_text: FREE_TEXT",
                r"FREE_TEXT: /(.|\n)*/",
                begun,
                "call: call_head call_rest",
                *_rest_of_call(tools, special_ids),
            )
        )


def _rest_of_call(tools: Sequence[ToolSpec], special_ids: Mapping[str, int]) -> list[str]:
    """`call_rest`: what stands behind the opening tag."""
    bodies = " | ".join(f"call_{number}" for number in range(len(tools)))
    rules = [f"call_rest: {lark_text(chr(10))} ({bodies}) {lark_text(chr(10))} {lark_marker(CLOSE, special_ids)}"]
    for number, tool in enumerate(tools):
        head = lark_text(f'{{"name": "{tool.name}", "arguments": ')
        rules.append(f"call_{number}: {head} args_{number} {lark_text('}')}")
        rules.append(f"args_{number}: {lark_schema(tool.parameters)}")
    return rules


class HermesParser(BufferedParser):
    """Several objects in one pair of tags, alone or in a list, are taken too: SmolLM2 writes a list."""

    def __init__(self, sink: CallSink, names: Container[str]) -> None:
        super().__init__(sink, names, (OPEN, CLOSE))
        self._reader = JsonCallReader(sink, names)

    def _after_marker(self, marker: str) -> Callable[[], bool]:
        if marker == OPEN:
            return self._list_or_call
        if self._sink.num_calls:  # behind a call that broke off
            self._raw = ""
        return self._give_up

    def _list_or_call(self) -> bool:
        stripped = self._buffer.lstrip()
        if not stripped:
            return False
        if stripped[0] == "[":
            self._raw += self._take(len(self._buffer) - len(stripped) + 1)
        return self._next_call()

    def _next_call(self) -> bool:
        self._reader = JsonCallReader(self._sink, self._names)
        self._state = self._in_call
        return True

    def _in_call(self) -> bool:
        return self._read_json_call(self._reader, self._after_call)

    def _after_call(self) -> bool:
        self._buffer = self._buffer.lstrip(" \t\r\n,]")
        if self._buffer.startswith(CLOSE):
            self._take(len(CLOSE))
            self._state = self._content
            return True
        if not self._buffer or could_start(self._buffer, CLOSE):
            return False
        if self._buffer[0] == "{":
            return self._next_call()
        self._state = self._content
        return True

    def finish(self) -> None:
        if self._state == self._after_call and could_start(self._buffer, CLOSE):
            self._buffer = ""
        super().finish()
