"""/v1/responses: the response object and its stream of events (order: `response_items.py`)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from gateway.calls import Counts
from gateway.errors import GatewayError
from gateway.pipeline import Exchange
from gateway.presenters.response_items import Event, OutputItems
from gateway.responses.event_log import EventLog
from gateway.schemas.responses import (
    FunctionTool,
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponsesRequest,
    ResponseUsage,
)
from gateway.streaming import named_frame

Keep = Callable[[Response], Awaitable[None]]


def skeleton(data: ResponsesRequest, response_id: str, *, service_tier: str, store: bool) -> Response:
    """The response before anything was generated: what was asked for, with defaults filled in."""
    text_format = data.text.format if data.text else None
    return Response(
        id=response_id,
        created_at=int(time.time()),
        model=data.model,
        status="in_progress",
        output=[],
        background=bool(data.background),
        instructions=data.instructions,
        max_output_tokens=data.max_output_tokens,
        max_tool_calls=data.max_tool_calls,
        metadata=data.metadata or {},
        parallel_tool_calls=data.parallel_tool_calls is not False,
        previous_response_id=data.previous_response_id,
        prompt_cache_key=data.prompt_cache_key,
        reasoning={
            "effort": data.reasoning.effort if data.reasoning else None,
            "summary": data.reasoning.summary if data.reasoning else None,
        },
        safety_identifier=data.safety_identifier,
        service_tier=service_tier,
        store=store,
        temperature=1.0 if data.temperature is None else data.temperature,
        text={"format": _plain(text_format) if text_format else {"type": "text"}},
        tool_choice=_plain(data.tool_choice) if data.tool_choice is not None else "auto",
        tools=[_tool(tool) for tool in data.tools or ()],
        top_logprobs=data.top_logprobs or 0,
        top_p=1.0 if data.top_p is None else data.top_p,
        truncation=data.truncation or "disabled",
        user=data.user,
    )


def _plain(value: Any) -> Any:
    plain = msgspec.to_builtins(value)
    return {key: item for key, item in plain.items() if item is not None} if isinstance(plain, dict) else plain


def _tool(tool: FunctionTool) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(tool)
    return plain


class ResponsePresenter:
    """Fills one response from its exchange. `keep` is awaited with the final object before a client sees it."""

    def __init__(self, response: Response, exchange: Exchange, keep: Keep | None = None) -> None:
        self.response = response
        self.exchange = exchange
        self._keep = keep
        self._items = OutputItems(top_logprobs=response.top_logprobs)
        self._sequence = 0

    async def whole(self) -> Response:
        """Runs the exchange to its end. Raises: GatewayError."""
        finish = None
        async with aclosing(self.exchange.pieces()) as stream:
            async for pieces in stream:
                for piece in pieces:
                    self._items.add(piece)
                    finish = piece.finish_reason or finish
        self._items.close(complete=finish != "length")
        return await self._finished(finish)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """SSE frames with `event:` lines. Raises: GatewayError (see `error_frames`)."""
        finish = None
        begun = False
        async with aclosing(self.exchange.pieces()) as stream:
            async for pieces in stream:
                if not begun:
                    begun = True
                    yield self._beginning()
                for piece in pieces:
                    if events := self._items.add(piece):
                        yield self._frames(events)
                    finish = piece.finish_reason or finish
        events = self._items.close(complete=finish != "length")
        final = await self._finished(finish)
        yield self._frames([*events, {"type": f"response.{final.status}", "response": self._object()}])

    async def log_into(self, log: EventLog) -> None:
        """Runs the exchange to its end, in the background: every event goes into `log` but the last.

        Raises: GatewayError.
        """
        finish = None
        self.log_state(log, "in_progress")
        async with aclosing(self.exchange.pieces()) as stream:
            async for pieces in stream:
                for piece in pieces:
                    self.log(log, *self._items.add(piece))
                    finish = piece.finish_reason or finish
        self.log(log, *self._items.close(complete=finish != "length"))
        await self._finished(finish)

    def log(self, log: EventLog, *events: Event) -> None:
        """Appends each event with its sequence number."""
        for event in events:
            log.append(self._frame(event))

    def log_state(self, log: EventLog, *kinds: str) -> None:
        """Appends an event of each kind with the response as it is now."""
        for kind in kinds:
            self.log(log, {"type": f"response.{kind}", "response": self._object()})

    def last_frame(self) -> bytes:
        """The event that tells how the response ended."""
        return self._frame({"type": f"response.{self.response.status}", "response": self._object()})

    def _beginning(self) -> bytes:
        """Both go out only once the first pieces are there: an error before them is a real HTTP status."""
        created = self._object()
        kinds = ("response.created", "response.in_progress")
        return self._frames([{"type": kind, "response": created} for kind in kinds])

    async def _finished(self, finish: str | None) -> Response:
        response = self.response
        response.output = self._items.items
        response.usage = usage_of(self.exchange.counts)
        response.weir = self.exchange.note()
        response.completed_at = int(time.time())
        response.status = "completed"
        if finish in ("length", "content_filter"):
            response.status = "incomplete"
            reason = "max_output_tokens" if finish == "length" else "content_filter"
            response.incomplete_details = IncompleteDetails(reason=reason)
        if self._keep is not None:
            await self._keep(response)
        return response

    def _object(self) -> Any:
        return msgspec.to_builtins(self.response)

    def _frames(self, events: list[Event]) -> bytes:
        return b"".join(self._frame(event) for event in events)

    def _frame(self, event: Event) -> bytes:
        numbered = {"type": event["type"], "sequence_number": self._sequence, **event}
        self._sequence += 1
        return named_frame(event["type"], numbered)

    def error_frames(self, error: GatewayError) -> bytes:
        """One `error` event that is both the specification's flat one and the nested one OpenAI really sends:
        clients of each kind find their keys."""
        envelope = error.envelope()["error"]
        return self._frame(
            {
                "type": "error",
                "code": envelope["code"],
                "message": envelope["message"],
                "param": envelope["param"],
                "error": envelope,
            }
        )


def usage_of(counts: Counts) -> ResponseUsage:
    """The usage object of the counts."""
    return ResponseUsage(
        input_tokens=counts.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=counts.cached_tokens),
        output_tokens=counts.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=counts.reasoning_tokens),
        total_tokens=counts.prompt_tokens + counts.completion_tokens,
    )


def failed(response: Response, code: str, message: str) -> Response:
    """The response as one that failed."""
    response.status = "failed"
    response.error = ResponseError(code=code, message=message)
    return response
