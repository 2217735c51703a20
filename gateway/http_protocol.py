"""The server's HTTP/1.1 protocol: a bound on a head that does not end, which uvicorn has for h11 alone, and word of a
client that leaves, which costs a task a request where it is asked of ASGI's `receive`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request
from litestar.types import Receive
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import MAX_HEAD_BYTES, HeadTooLarge

CONNECTION = "connection"  # where a request's state has its connection
Leave = Callable[[], None]


def watch_client(request: Request[Any, Any, Any], leave: Leave) -> Leave:
    """Calls `leave` when the request's client is gone, unless what is returned was called before.

    The body must have been read already."""
    connection = request.scope["state"].get(CONNECTION)
    if connection is not None:
        connection.when_lost(leave)
        return lambda: connection.when_lost(None)
    watcher = asyncio.create_task(disconnected(request.receive))
    over = False

    def done(task: asyncio.Task[None]) -> None:
        if not over and not task.cancelled():
            leave()

    def unwatch() -> None:
        nonlocal over
        over = True
        watcher.cancel()

    watcher.add_done_callback(done)
    return unwatch


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 431 and closes once a request's head is unfinished MAX_HEAD_BYTES after the read that began it.

    Whole heads are measured by gateway/middleware.py; here only what is held in memory meanwhile is bounded.
    """

    _in_head = False
    _head_bytes = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._leave: Leave | None = None

    def when_lost(self, leave: Leave | None) -> None:
        """`leave` is called once the connection is lost, at once if it is already; None takes it back. One a
        connection: of the requests on it only the first unanswered one is being worked on."""
        self._leave = leave
        if leave is None:
            return
        self.flow.resume_reading()  # paused by the last lump of a body: then nothing tells of the client's end
        if self.transport.is_closing():
            self.loop.call_soon(self._tell)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._tell()

    def _tell(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def data_received(self, data: bytes) -> None:
        """Counted before parsing: the read in which a head begins may hold the end of another request's body."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.scope["state"][CONNECTION] = self
        super().on_headers_complete()

    def _refuse(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering:  # else these bytes would land amid the answer to the request before
            error = HeadTooLarge()
            body = msgspec.json.encode(error.envelope())
            head = (
                f"HTTP/1.1 {error.status_code} Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
