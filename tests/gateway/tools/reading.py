"""Reads a text through a format's parser, split as told."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import msgspec

from gateway.tools.registry import FORMATS
from gateway.tools.sink import MAX_CALLS, CallSink

_TYPED = {"type": "object", "properties": {"b": {"type": "string"}, "n": {"type": "integer"}}}
FUNCTIONS: dict[str, dict[str, Any]] = {"f": _TYPED, "get_weather": {}, "ping": {}}


class Call(msgspec.Struct):
    id: str
    name: str
    arguments: str


def read(format_name: str, chunks: Iterable[str], *, max_calls: int = MAX_CALLS) -> tuple[str, list[Call]]:
    """The content and the calls, gathered as a client gathers deltas."""
    numbers = count()
    sink = CallSink(max_calls=max_calls, new_id=lambda: f"call_{next(numbers)}")
    parser = FORMATS[format_name].parser(sink, FUNCTIONS)
    text, calls = "", list[Call]()

    def take() -> None:
        nonlocal text
        new_text, pieces = sink.take()
        text += new_text
        for piece in pieces:
            if piece.index == len(calls):
                assert piece.id is not None
                assert piece.name is not None
                calls.append(Call(piece.id, piece.name, piece.arguments))
            else:
                assert (piece.index, piece.id, piece.name) == (len(calls) - 1, None, None)
                calls[-1].arguments += piece.arguments

    for chunk in chunks:
        parser.feed(chunk)
        take()
    parser.finish()
    take()
    return text, calls
