"""Where a format's parser puts what it is sure of: content, and the parts of calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable

from gateway.calls import ToolCallPiece

MAX_CALLS = 128  # as many as a request may have tools
_ID_CHARS = string.ascii_letters + string.digits


def new_call_id() -> str:
    """`call_` and 24 letters and digits, as OpenAI's."""
    return "call_" + "".join(secrets.choice(_ID_CHARS) for _ in range(24))


class CallSink:
    """Gathers one choice's content and calls. `max_calls` 1 drops every call after the first."""

    def __init__(self, *, max_calls: int = MAX_CALLS, new_id: Callable[[], str] = new_call_id) -> None:
        self._max_calls = max_calls
        self._new_id = new_id
        self._text: list[str] = []
        self._pieces: list[ToolCallPiece] = []
        self._has_arguments = False
        self._dropping = False
        self.num_calls = 0
        self.is_open = False

    def text(self, text: str) -> None:
        """Content. What follows the last call that is allowed is dropped: it would stand beside a call not made."""
        if text and not self._dropping:
            self._text.append(text)

    def begin(self, name: str) -> None:
        """A call whose name is certain."""
        if self.num_calls >= self._max_calls:
            self._dropping = True
        if self._dropping:
            return
        self._pieces.append(ToolCallPiece(index=self.num_calls, id=self._new_id(), name=name))
        self.num_calls += 1
        self.is_open = True
        self._has_arguments = False

    def arguments(self, fragment: str) -> None:
        """The next characters of the open call's arguments."""
        if self._dropping or not fragment:
            return
        self._has_arguments = True
        index = self.num_calls - 1
        if self._pieces and self._pieces[-1].index == index:
            self._pieces[-1].arguments += fragment
        else:
            self._pieces.append(ToolCallPiece(index=index, arguments=fragment))

    def end(self) -> None:
        """The open call is complete; one without arguments ends as `{}`, which clients can parse."""
        if self._dropping:
            return
        if not self._has_arguments:
            self.arguments("{}")
        self.is_open = False

    def take(self) -> tuple[str, list[ToolCallPiece]]:
        """What has come in since the last time."""
        text, pieces = "".join(self._text), self._pieces
        self._text, self._pieces = [], []
        return text, pieces
