"""A gateway behind the server it ships with, on a real socket, spoken to in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import uvicorn

from gateway.server import _uvicorn_options
from gateway.settings import Settings
from tests.gateway.conftest import Gateway


class Answer(msgspec.Struct):
    """One HTTP answer as it came; names of headers in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, raw: bytes) -> None:
        self._writer.write(raw)
        await self._writer.drain()

    async def answer(self, *, body: bool = True) -> Answer:
        """The next answer; without `body` what a HEAD gets: a length, and nothing that long."""
        async with asyncio.timeout(60):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = (line.partition(": ") for line in head[1:] if line)
            headers = {name.lower(): value for name, _, value in fields}
            length = int(headers["content-length"]) if body else 0
            return Answer(int(head[0].split()[1]), headers, await self._reader.readexactly(length))

    async def ended(self) -> bool:
        """Whether the server closed the connection, with nothing more said."""
        async with asyncio.timeout(60):
            return await self._reader.read(1) == b""

    def leave(self) -> None:
        self._writer.close()


class InLoopServer(uvicorn.Server):
    """In the test's own loop and task: signals are pytest's."""

    async def listen(self) -> int:
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup()
        return int(self.servers[0].sockets[0].getsockname()[1])

    async def close(self) -> None:
        self.should_exit = True
        await self.shutdown()


@asynccontextmanager
async def connected(gateway: Gateway) -> AsyncIterator[Connection]:
    """A connection to `gateway` under `weir serve`'s own server options."""
    options = {**_uvicorn_options(Settings()), "lifespan": "off", "timeout_graceful_shutdown": 2}
    server = InLoopServer(uvicorn.Config(gateway.app, port=0, log_config=None, **options))
    port = await server.listen()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        await server.close()
