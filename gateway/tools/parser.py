"""One choice's raw text into content and calls, with OpenAI's finish_reason."""

from __future__ import annotations

from collections.abc import Callable

from gateway.calls import Piece
from gateway.tools.choice import Mode, ToolPolicy
from gateway.tools.format import ToolFormat
from gateway.tools.sink import MAX_CALLS, CallSink, new_call_id


class ToolOutputParser:
    """An `OutputParser`. The outcome does not depend on how the text is split."""

    def __init__(self, format_: ToolFormat, policy: ToolPolicy, *, new_id: Callable[[], str] = new_call_id) -> None:
        self._named = policy.mode is Mode.NAMED
        self._sink = CallSink(max_calls=policy.max_calls or MAX_CALLS, new_id=new_id)
        self._parser = format_.parser(self._sink, {spec.name: spec.parameters for spec in policy.callable})

    def feed(self, text: str) -> Piece:
        """What is certain after `text`."""
        self._parser.feed(text)
        return self._piece()

    def finish(self, finish_reason: str) -> Piece:
        """The held-back rest.

        A complete call makes `stop` into `tool_calls`, except for a named function, which OpenAI ends with `stop`;
        a call that was cut off keeps `length`, so that clients do not parse half its arguments.
        """
        self._parser.finish()
        piece = self._piece()
        piece.finish_reason = finish_reason
        if finish_reason == "stop" and self._sink.num_calls and not self._sink.is_open and not self._named:
            piece.finish_reason = "tool_calls"
        return piece

    def _piece(self) -> Piece:
        text, calls = self._sink.take()
        return Piece(index=0, text=text, tool_calls=calls)
