"""Thinking models: what stands between `<think>` and `</think>` at an answer's beginning is its reasoning.

Some templates open the tag themselves, so that the answer begins inside it. Like every output parser, this one gives
the same result at every split of the text.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.types import Unstopped
from gateway.calls import OutputParser, Piece
from gateway.tools.format import could_start, held_length

OPEN, CLOSE = "<think>", "</think>"


class ReasoningParser:
    """Hands what follows the reasoning to `inner` (tools), or passes it through.

    `is_open`: the prompt ended inside the tag.
    """

    def __init__(self, inner: OutputParser | None = None, *, is_open: bool = False) -> None:
        self._inner = inner
        self._buffer = ""
        self._state: Callable[[Piece], bool] = self._lead if is_open else self._start

    def feed(self, text: str) -> Piece:
        """What is certain after `text`."""
        self._buffer += text
        piece = Piece(index=0)
        while self._buffer and self._state(piece):
            pass
        return piece

    def finish(self, finish_reason: str) -> Piece:
        """The held-back rest. An answer cut off inside its reasoning has no content, which is legal."""
        rest, self._buffer = self._buffer, ""
        piece = Piece(index=0)
        if self._state == self._reasoning:
            piece.reasoning = rest
        elif self._state == self._start:
            self._give(piece, rest)
        if self._inner is None:
            piece.finish_reason = finish_reason
            return piece
        last = self._inner.finish(finish_reason)
        piece.text += last.text
        piece.tool_calls = piece.tool_calls + last.tool_calls
        piece.finish_reason = last.finish_reason
        return piece

    def _start(self, piece: Piece) -> bool:  # noqa: ARG002 - every state has the same shape
        stripped = self._buffer.lstrip()
        if not stripped or could_start(stripped, OPEN):
            return False
        if stripped.startswith(OPEN):
            self._buffer = stripped[len(OPEN) :]
            self._state = self._lead
        else:
            self._state = self._content
        return True

    def _lead(self, piece: Piece) -> bool:  # noqa: ARG002
        """White space behind the opening tag is nobody's."""
        self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return False
        self._state = self._reasoning
        return True

    def _reasoning(self, piece: Piece) -> bool:
        end = self._buffer.find(CLOSE)
        if end < 0:
            keep = held_length(self._buffer, (CLOSE,))
            piece.reasoning += self._buffer[: len(self._buffer) - keep]
            self._buffer = self._buffer[len(self._buffer) - keep :]
            return False
        held = held_length(self._buffer[:end], ())
        piece.reasoning += self._buffer[: end - held]
        self._buffer = self._buffer[end + len(CLOSE) :]
        self._state = self._trail
        return True

    def _trail(self, piece: Piece) -> bool:  # noqa: ARG002
        """White space behind the closing tag is nobody's either."""
        self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return False
        self._state = self._content
        return True

    def _content(self, piece: Piece) -> bool:
        text, self._buffer = self._buffer, ""
        self._give(piece, text)
        return False

    def _give(self, piece: Piece, text: str) -> None:
        if self._inner is None:
            piece.text += text
            return
        inner = self._inner.feed(text)
        piece.text += inner.text
        piece.tool_calls = piece.tool_calls + inner.tool_calls


def reasoning_of(template: str, *, prompt_end: str, has_grammar: bool) -> Unstopped | None:
    """Where a thinking model's reasoning stands in its answer; None for other models.

    Args: prompt_end is the end of the rendered prompt; has_grammar: the answer is constrained from its first token, so
    it holds no reasoning.
    """
    if OPEN not in template or has_grammar:
        return None
    return Unstopped(OPEN, CLOSE, is_open=prompt_end.rstrip().endswith(OPEN))


def with_reasoning(
    new_parser: Callable[[], OutputParser] | None, reasoning: Unstopped | None
) -> Callable[[], OutputParser] | None:
    """`new_parser` behind a ReasoningParser where there may be reasoning."""
    if reasoning is None:
        return new_parser

    def new() -> OutputParser:
        return ReasoningParser(new_parser() if new_parser is not None else None, is_open=reasoning.is_open)

    return new
