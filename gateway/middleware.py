"""Around every request, whatever becomes of it: its id, its headers, HEAD as GET, one access-log line, its count.

Wrapped around Litestar's whole ASGI handler, because Litestar's own middleware does not run for 404 and 405.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from billing.ids import new_id
from gateway.draining import STOPPING, InFlight, server_stops
from gateway.errors import LEFT_IN_BODY, MAX_HEAD_BYTES, GatewayError, HeadTooLarge, NotFound, clip
from gateway.metrics import Metrics
from gateway.planes import HEALTH_PATHS, Planes

log = logging.getLogger("gateway.access")

OPENAI_VERSION = "2020-10-01"  # what api.openai.com says in openai-version
EXPOSED_HEADERS = (
    "x-request-id", "retry-after", "retry-after-ms", "x-should-retry", "openai-processing-ms", "openai-version",
    "x-weir-cache", "x-weir-warning", "x-weir-served-by",
    "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
)  # fmt: skip
UNCOUNTED = HEALTH_PATHS | {"/metrics"}  # answered until the very end, and waited for by nobody
_QUIET_PATHS = frozenset({"/health", "/ready", "/metrics", "/ping"})  # polled every few seconds


class RequestContext:
    """The ASGI wrapper.

    `allowed` gives a path's methods; `in_flight` is told of every request; `new_request_id` is replaced in tests.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        planes: Planes,
        *,
        allowed: Callable[[str], str],
        in_flight: InFlight,
        new_request_id: Callable[[], str] = lambda: new_id("req"),
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._planes = planes
        self._allowed = allowed
        self._in_flight = in_flight
        self._new_request_id = new_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        exchange = _HttpExchange(scope, receive, send, self._new_request_id())
        scope = exchange.scope
        try:
            if refusal := self._refusal(scope, exchange.method):
                await _refuse(refusal, exchange.send)
            elif allow := self._asked_options(scope, exchange.method):
                await _tell_methods(allow, exchange.send)
            elif _routed_path(scope) in UNCOUNTED:
                await self._app(scope, exchange.receive, exchange.send)
            else:
                with self._in_flight.one(exchange.state):
                    await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if not exchange.state.get(STOPPING):
                raise
            if not exchange.has_begun:  # a stream that has says it itself
                await _refuse(server_stops(), exchange.send)
        finally:
            self._finished(scope, exchange)

    def _refusal(self, scope: Scope, method: str) -> GatewayError | None:
        """What is refused before anything of the request is looked at. Another plane's path does not exist here."""
        if _head_bytes(scope) > MAX_HEAD_BYTES:
            return HeadTooLarge()
        if not self._planes.serves(_port(scope), _routed_path(scope)):
            return NotFound(f"Invalid URL ({method} {clip(scope['path'])})")
        if self._in_flight.refusing and _routed_path(scope) not in UNCOUNTED:
            return server_stops()
        return None

    def _asked_options(self, scope: Scope, method: str) -> str:
        """The methods to tell of. Litestar's own answer wants a key and leaves out methods of a path's other handlers;
        a browser's preflight is for its CORS middleware."""
        if method != "OPTIONS" or any(name == b"access-control-request-method" for name, _ in scope["headers"]):
            return ""
        return self._allowed(_routed_path(scope))

    def _finished(self, scope: Scope, exchange: _HttpExchange) -> None:
        seconds = time.perf_counter() - exchange.begun
        self._metrics.http_request(_route(scope), exchange.status, seconds)
        path = scope["path"]
        if path in _QUIET_PATHS:
            return
        log.info(
            "%s %s %d",
            exchange.method,
            path[:200],
            exchange.status,
            extra={
                "request_id": exchange.request_id,
                "status": exchange.status,
                "duration_ms": round(seconds * 1000, 2),
                "retry_count": _retry_count(scope),
            },
        )


class _HttpExchange:
    """One request's id, clock and outgoing messages. `scope` is the application's; the server's own is left as is."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.begun = time.perf_counter()
        self.status = 499  # what it stays at when nothing was ever sent
        self.has_begun = False
        self.request_id = request_id
        self.method = str(cast(dict[str, Any], scope)["method"])
        self._receive = receive
        self._body_read = False
        self._send = send
        self.state: dict[str, Any] = scope.setdefault("state", {})
        self.state["request_id"] = request_id
        self._is_head = self.method == "HEAD"
        # A copy: the server frames the answer by the method in its scope, and a HEAD's has a length and no body.
        self.scope = cast(Scope, {**scope, "method": "GET"}) if self._is_head else scope

    async def receive(self) -> Any:
        """The server's next message. A client that leaves before its body is whole is noted for `error_response`."""
        message = cast(dict[str, Any], await self._receive())
        if message["type"] == "http.disconnect" and not self._body_read:
            self.state[LEFT_IN_BODY] = True
        elif message["type"] == "http.request" and not message.get("more_body", False):
            self._body_read = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.has_begun = True
            message["headers"] = [*message.get("headers", ()), *self._headers()]
        elif self._is_head and message["type"] == "http.response.body":
            message = cast(Message, {**message, "body": b""})
        await self._send(message)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        milliseconds = int((time.perf_counter() - self.begun) * 1000)
        headers = [
            (b"x-request-id", self.request_id.encode()),
            (b"openai-processing-ms", str(milliseconds).encode()),
            (b"openai-version", OPENAI_VERSION.encode()),
        ]
        if ignored := self.state.get("ignored_fields"):
            names = ", ".join(ignored).encode("ascii", "backslashreplace").decode()
            printable = "".join(char if " " <= char <= "~" else "?" for char in names)
            headers.append((b"x-weir-warning", f"ignored unknown fields: {printable}"[:1000].encode()))
        return headers


def _port(scope: Scope) -> int | None:
    """The port the request came in on; None where the server does not say (a Unix socket)."""
    server = scope.get("server")
    return server[1] if server else None


def _routed_path(scope: Scope) -> str:
    """The path that Litestar's router will look up: without the root path, cut off as the router does it."""
    root = scope.get("root_path", "")
    return scope["path"].split(root, maxsplit=1)[-1] if root else scope["path"]


def _head_bytes(scope: Scope) -> int:
    """Bytes of a request's URL and headers."""
    url = len(scope.get("raw_path", b"")) + len(scope["query_string"])
    return url + sum(len(name) + len(value) for name, value in cast(Any, scope)["headers"])


async def _refuse(error: GatewayError, send: Send) -> None:
    body = msgspec.json.encode(error.envelope())
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in error.response_headers().items()]
    await send({"type": "http.response.start", "status": error.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _tell_methods(allow: str, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", allow.encode())]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _route(scope: Scope) -> str:
    """The route's template: a path that a caller invents must not become a label."""
    template = cast(dict[str, Any], scope).get("path_template")
    return template if isinstance(template, str) else "unmatched"


def _retry_count(scope: Scope) -> int:
    for name, value in cast(Any, scope)["headers"]:
        if name == b"x-stainless-retry-count" and value.isdigit() and len(value) < 4:
            return int(value)
    return 0
