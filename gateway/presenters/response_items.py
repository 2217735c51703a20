"""Pieces of a generation as output items of a response, with the events that tell of them.

One machine serves streams and plain answers, so that a stream's last object is the plain call's by construction. Order
(each one breaks a client when broken): an item is added empty, its part is added, deltas, the part is done, the item
is done; `output_index` counts items from 0, `content_index` starts at 0 in every item.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from billing.ids import new_id
from engine.types import TokenLogprob
from gateway.calls import Piece, ToolCallPiece
from gateway.presenters.common import clamp

Event = dict[str, Any]


class OutputItems:
    """`items` are the finished ones; `add` and `close` return events without their sequence numbers."""

    def __init__(self, *, top_logprobs: int = 0, new_id: Callable[[str], str] = new_id) -> None:
        self.items: list[dict[str, Any]] = []
        self._top = top_logprobs
        self._new_id = new_id
        self._open: dict[str, Any] | None = None

    def add(self, piece: Piece) -> list[Event]:
        """Events for what is new in the piece."""
        events: list[Event] = []
        if piece.reasoning:
            self._switch("reasoning", events)
            events.append(self._delta("response.reasoning_text.delta", piece.reasoning))
        if piece.text or (piece.logprobs and not piece.tool_calls):
            self._switch("message", events)
            events.append(self._text_delta(piece))
        for call in piece.tool_calls:
            self._call(call, events)
        return events

    def close(self, *, complete: bool) -> list[Event]:
        """Ends the open item; an answer of nothing is a message of nothing. `complete` False: it was cut off."""
        events: list[Event] = []
        if self._open is None and not self.items:
            self._switch("message", events)
        self._end(events, "completed" if complete else "incomplete")
        return events

    def _call(self, call: ToolCallPiece, events: list[Event]) -> None:
        if call.id is not None:
            self._end(events, "completed")
            self._begin(
                {
                    "id": self._new_id("fc"),
                    "type": "function_call",
                    "status": "in_progress",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": "",
                },
                events,
            )
        assert self._open is not None
        if call.arguments:
            self._open["arguments"] += call.arguments
            events.append(self._event("response.function_call_arguments.delta", delta=call.arguments))

    def _switch(self, kind: str, events: list[Event]) -> None:
        if self._open is not None and self._open["type"] == kind:
            return
        self._end(events, "completed")
        if kind == "message":
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item: dict[str, Any] = {
                "id": self._new_id("msg"),
                "type": kind,
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
        else:
            part = {"type": "reasoning_text", "text": ""}
            item = {"id": self._new_id("rs"), "type": kind, "status": "in_progress", "summary": [], "content": []}
        self._begin(item, events)
        events.append(self._event("response.content_part.added", content_index=0, part=dict(part)))
        item["content"].append(part)

    def _begin(self, item: dict[str, Any], events: list[Event]) -> None:
        self._open = item
        shown = {**item, "content": []} if "content" in item else dict(item)
        events.append({"type": "response.output_item.added", "output_index": len(self.items), "item": shown})

    def _delta(self, kind: str, text: str, **more: Any) -> Event:
        assert self._open is not None
        self._open["content"][0]["text"] += text
        return self._event(kind, content_index=0, delta=text, **more)

    def _text_delta(self, piece: Piece) -> Event:
        logprobs = [_logprob(entry, self._top) for entry in piece.logprobs or ()]
        assert self._open is not None
        self._open["content"][0]["logprobs"] += logprobs
        return self._delta("response.output_text.delta", piece.text, logprobs=logprobs)

    def _end(self, events: list[Event], status: str) -> None:
        item = self._open
        if item is None:
            return
        item["status"] = status
        if item["type"] == "function_call":
            events.append(
                self._event("response.function_call_arguments.done", arguments=item["arguments"], name=item["name"])
            )
        else:
            part = dict(item["content"][0])
            extra = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            kind = "output_text" if item["type"] == "message" else "reasoning_text"
            events.append(self._event(f"response.{kind}.done", content_index=0, text=part["text"], **extra))
            events.append(self._event("response.content_part.done", content_index=0, part=part))
        events.append({"type": "response.output_item.done", "output_index": len(self.items), "item": dict(item)})
        self.items.append(item)
        self._open = None

    def _event(self, kind: str, **fields: Any) -> Event:
        assert self._open is not None
        return {"type": kind, "item_id": self._open["id"], "output_index": len(self.items), **fields}


def _logprob(entry: TokenLogprob, top: int) -> dict[str, Any]:
    def plain(each: TokenLogprob) -> dict[str, Any]:
        return {"token": each.text, "logprob": clamp(each.logprob), "bytes": list(each.bytes)}

    return {**plain(entry), "top_logprobs": [plain(other) for other in entry.top[:top]]}
