"""Server-sent events as the SDKs need them, and answers that end when their client leaves.

Wire rules (each one breaks some client when broken): frames are `data: {json}` and two newlines; U+2028, U+2029 and
U+0085 are escaped; keep-alive is a comment and nothing else; the end is exactly `data: [DONE]`; an error after the
headers is a `data:` frame holding the envelope, then [DONE]. Headers go out only once the first frame is there, so
that an error before it has a real status.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from gateway.draining import STOPPING, server_stops
from gateway.errors import ClientClosedRequest, GatewayError, from_exception
from gateway.http_protocol import disconnected, watch_client

T = TypeVar("T")
log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
# Old line readers split on these; in JSON they can only stand inside a string.
_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))

_encoder = msgspec.json.Encoder()


def encode(payload: Any) -> bytes:
    """Strict JSON with the line separators escaped."""
    body = _encoder.encode(payload)
    if b"\xe2\x80" in body or b"\xc2\x85" in body:
        for raw, escaped in _SEPARATORS:
            body = body.replace(raw, escaped)
    return body


def frame(payload: Any) -> bytes:
    """`payload` as one `data:` frame."""
    return b"data: " + encode(payload) + b"\n\n"


def named_frame(event: str, payload: Any) -> bytes:
    """A frame with an `event:` line, for the Responses and Messages APIs (illegal in chat and completion streams)."""
    return b"event: " + event.encode() + b"\ndata: " + encode(payload) + b"\n\n"


def openai_error_frames(error: GatewayError) -> bytes:
    """How a chat or completion stream ends when it fails after the headers."""
    return frame(error.envelope()) + DONE


def json_response(payload: Any, *, headers: Mapping[str, str] | None = None, status_code: int = 200) -> ASGIResponse:
    """`payload` (a struct or builtins) as an application/json answer."""
    return _JsonAnswer(_encoder.encode(payload), headers or {}, status_code)


class _JsonAnswer(ASGIResponse):
    """A whole body and its headers, put together once: Litestar's own looks each up in a mapping as it is added."""

    __slots__ = ("_lines",)

    def __init__(self, body: bytes, headers: Mapping[str, str], status_code: int) -> None:
        self.body, self.status_code = body, status_code
        self._lines = [
            *((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        await send({"type": "http.response.start", "status": self.status_code, "headers": self._lines})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})


async def until_disconnect(request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`, cancelling it when the client leaves: Litestar itself lets a plain handler run to its end.

    `work` runs in the caller's own task: one of its own, and waiting for it, cost as much as authentication.

    The body must have been read already. Raises: ClientClosedRequest; whatever `work` raises.
    """
    caller = asyncio.current_task()
    assert caller is not None
    left = False

    def leave() -> None:
        nonlocal left
        left = True
        caller.cancel()

    unwatch = watch_client(request, leave)
    try:
        return await work
    except asyncio.CancelledError:
        if left and caller.uncancel() == 0:  # else somebody else has cancelled too: the server's stop
            raise ClientClosedRequest("The client closed the connection before the answer was complete.") from None
        raise
    finally:
        unwatch()


class EventStream(ASGIResponse):
    """A 200 text/event-stream whose first frame is already there.

    `frames` is closed as soon as the client leaves, even while a frame is being sent; its `finally` settles. What it
    raises after the headers becomes `on_error(error)`, by default OpenAI's error frame and [DONE].
    """

    __slots__ = ("_first", "_frames", "_last_sent", "_on_error")
    _should_set_content_length = False

    def __init__(
        self,
        first: bytes,
        frames: AsyncGenerator[bytes, None],
        *,
        headers: Mapping[str, str] | None = None,
        on_error: Any = openai_error_frames,
    ) -> None:
        super().__init__(headers={**STREAM_HEADERS, **(headers or {})}, media_type="text/event-stream")
        self._first = first
        self._frames = frames
        self._on_error = on_error
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(send))
        watch = asyncio.ensure_future(self._watch(receive, send))
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            if not pump.done():
                pump.cancel()
            await asyncio.wait({pump, watch})
            if pump.cancelled() and scope["state"].get(STOPPING):
                await send({"type": "http.response.body", "body": self._failed(server_stops()), "more_body": False})
        if not pump.cancelled() and (failure := pump.exception()):
            raise failure

    async def _pump(self, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.encode_headers()})
            await self._send(send, self._first)
            try:
                async for chunk in self._frames:
                    await self._send(send, chunk)
            except Exception as exc:  # noqa: BLE001 - the stream's supervisor: whatever failed, the client is told
                await self._send(send, self._failed(exc))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._frames.aclose()

    def _failed(self, exc: Exception) -> bytes:
        error = from_exception(exc)
        if not isinstance(exc, GatewayError):
            log.error("unhandled error in a stream", exc_info=exc)
        frames: bytes = self._on_error(error)
        return frames

    async def _send(self, send: Send, body: bytes) -> None:
        self._last_sent = time.monotonic()
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Ends when the client has left; meanwhile keeps an idle connection alive."""
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            while not gone.done():
                await asyncio.wait({gone}, timeout=KEEP_ALIVE_S)
                if not gone.done() and self._last_sent and time.monotonic() - self._last_sent >= KEEP_ALIVE_S:
                    await self._send(send, KEEP_ALIVE)
        finally:
            gone.cancel()
