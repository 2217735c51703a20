"""An HTTP exchange by hand over ASGI: messages are seen as they are sent, and the client can leave at any moment."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import msgspec

from tests.gateway.conftest import Gateway


class RawExchange:
    """`async with RawExchange(gateway, "POST", "/v1/..", body) as raw: await raw.chunk()`."""

    def __init__(
        self, gateway: Gateway, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> None:
        content = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        sent = {"content-type": "application/json", **gateway.tenant.headers} if headers is None else headers
        self._app = gateway.app
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
            "client": ("127.0.0.1", 1),
            "server": ("weir", 80),
        }
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": content, "more_body": False})
        self._outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.body_was_read = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        await self._app(self._scope, self._receive, self._outgoing.put)  # type: ignore[arg-type]

    async def _receive(self) -> dict[str, Any]:
        self.body_was_read = True
        return await self._incoming.get()

    async def start(self) -> dict[str, Any]:
        """The response's start: status and headers."""
        message = await self._next()
        assert message["type"] == "http.response.start"
        return message

    async def chunk(self) -> bytes:
        """The next piece of the body."""
        message = await self._next()
        assert message["type"] == "http.response.body"
        return bytes(message["body"])

    async def _next(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            return await self._outgoing.get()

    def leave(self) -> None:
        """The client closes its connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def finished(self) -> None:
        """Until the application is through with this request."""
        assert self._task is not None
        async with asyncio.timeout(60):
            await asyncio.wait({self._task})

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()
        await self.finished()
