"""The server's HTTP/1.1 protocol with a bound on a head that does not end, which uvicorn has for h11 alone."""

from __future__ import annotations

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import MAX_HEAD_BYTES, HeadTooLarge


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 431 and closes once a request's head is unfinished MAX_HEAD_BYTES after the read that began it.

    Whole heads are measured by gateway/middleware.py; here only what is held in memory meanwhile is bounded.
    """

    _in_head = False
    _head_bytes = 0

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
