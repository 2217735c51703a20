"""/v1/messages: pieces as content blocks, with the events that tell of them. Streams and plain answers share one
machine, so that both give the same message."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from gateway.anthropic.errors import error_frames
from gateway.calls import Counts, Piece
from gateway.errors import GatewayError
from gateway.pipeline import Exchange
from gateway.schemas.messages import AnthropicMessage, Block, MessageUsage
from gateway.streaming import named_frame

Event = dict[str, Any]
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class ContentBlocks:
    """`blocks` are all, the last of them open until `close`."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._kind = ""
        self._json = ""

    @property
    def has_calls(self) -> bool:
        return any(block["type"] == "tool_use" for block in self.blocks)

    def add(self, piece: Piece) -> list[Event]:
        """Events for what is new in the piece."""
        events: list[Event] = []
        if piece.reasoning:
            self._switch("thinking", {"type": "thinking", "thinking": "", "signature": ""}, events)
            self.blocks[-1]["thinking"] += piece.reasoning
            events.append(self._delta({"type": "thinking_delta", "thinking": piece.reasoning}))
        if piece.text:
            self._switch("text", {"type": "text", "text": ""}, events)
            self.blocks[-1]["text"] += piece.text
            events.append(self._delta({"type": "text_delta", "text": piece.text}))
        for call in piece.tool_calls:
            if call.id is not None:
                events += self.close()
                self._switch("tool_use", {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, events)
            if call.arguments:
                self._json += call.arguments
                events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return events

    def close(self) -> list[Event]:
        """Ends the open block."""
        if not self._kind:
            return []
        if self._kind == "tool_use":
            self.blocks[-1]["input"] = _input(self._json)
        self._kind, self._json = "", ""
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _switch(self, kind: str, block: Block, events: list[Event]) -> None:
        if self._kind == kind:
            return
        events += self.close()
        self._kind = kind
        self.blocks.append(block)
        shown = {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}
        events.append(shown)

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _input(text: str) -> dict[str, Any]:
    """The arguments as an object; what was cut off is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class MessagePresenter:
    """Writes one message, streamed or whole."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._content = ContentBlocks()
        self._finish: Piece | None = None

    async def whole(self) -> AnthropicMessage:
        """Runs the exchange to its end. Raises: GatewayError."""
        async with aclosing(self.exchange.pieces()) as stream:
            async for pieces in stream:
                for piece in pieces:
                    self._add(piece)
        self._content.close()
        return self._message(*self._stop())

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """SSE frames with `event:` lines. Raises: GatewayError (see `error_frames`)."""
        begun = False
        async with aclosing(self.exchange.pieces()) as stream:
            async for pieces in stream:
                if not begun:
                    begun = True
                    start = {"type": "message_start", "message": self._message(None, None)}
                    yield named_frame("message_start", start) + named_frame("ping", {"type": "ping"})
                for piece in pieces:
                    if events := self._add(piece):
                        yield _frames(events)
        stop_reason, stop_sequence = self._stop()
        usage = msgspec.to_builtins(usage_of(self.exchange.counts))
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        ending = [
            *self._content.close(),
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]
        yield _frames(ending)

    def _add(self, piece: Piece) -> list[Event]:
        if piece.finish_reason is not None:
            self._finish = piece
        return self._content.add(piece)

    def _stop(self) -> tuple[str, str | None]:
        """(stop_reason, stop_sequence): a call is the reason whatever ended the text behind it."""
        finish = self._finish
        if finish is None or finish.finish_reason == "stop":
            if self._content.has_calls:
                return "tool_use", None
            if finish is not None and isinstance(finish.stop_reason, str):
                return "stop_sequence", finish.stop_reason
            return "end_turn", None
        return _STOP_REASONS.get(finish.finish_reason or "", "end_turn"), None

    def _message(self, stop_reason: str | None, stop_sequence: str | None) -> AnthropicMessage:
        call = self.exchange.call
        return AnthropicMessage(
            id="msg_" + call.request_id.removeprefix("req_"),
            model=call.model,
            content=self._content.blocks,
            stop_reason=stop_reason,
            stop_sequence=stop_sequence,
            usage=usage_of(self.exchange.counts),
            weir=self.exchange.note(),
        )

    def error_frames(self, error: GatewayError) -> bytes:
        """How the stream ends when it fails after the headers."""
        return error_frames(error, self.exchange.call.request_id)


def usage_of(counts: Counts) -> MessageUsage:
    """The usage object: cached tokens are not input tokens here."""
    return MessageUsage(
        input_tokens=counts.prompt_tokens - counts.cached_tokens,
        cache_read_input_tokens=counts.cached_tokens,
        output_tokens=counts.completion_tokens,
    )


def _frames(events: list[Event]) -> bytes:
    return b"".join(named_frame(event["type"], event) for event in events)
