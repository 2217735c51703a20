"""An OpenAI-compatible server to be an upstream: it answers what a test scripted, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


class OpenAIStub:
    """`statuses` are given to the first requests, 200 to all after; an answer streams `words`, then usage.

    With `hang` it waits before its first byte, with `hang_before` before that word, until `released`.
    """

    def __init__(
        self,
        words: tuple[str, ...] = ("far", " away"),
        *,
        statuses: tuple[int, ...] = (),
        usage: dict[str, Any] | None = None,
        break_after: int | None = None,
        answer_id: str | None = "chatcmpl-1",
    ) -> None:
        self.words = words
        self.statuses = list(statuses)
        self.usage = usage
        self.break_after = break_after
        self.answer_id = answer_id
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.hang = False
        self.hang_before: int | None = None
        self.released = asyncio.Event()
        self.gone = asyncio.Event()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.requests]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(({k.lower(): v for k, v in request.headers.items()}, body))
        status = self.statuses.pop(0) if self.statuses else 200
        if status != 200:
            error = {"message": "the stub refuses", "type": "server_error", "param": None, "code": "stubbed"}
            return web.json_response({"error": error}, status=status, headers={"retry-after": "0"})
        if self.hang:
            try:
                await self.released.wait()
            finally:
                self.gone.set()
        if not body.get("stream"):
            return web.json_response(self._whole())
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number, word in enumerate(self.words):
            if number == self.break_after:
                await response.write(b'data: {"error": {"message": "the stub broke", "type": "server_error"}}\n\n')
                return response
            if number == self.hang_before:
                await self.released.wait()
            await self._frame(response, {"content": word, **({"role": "assistant"} if number == 0 else {})})
        await self._frame(response, {}, "stop")
        if self.usage is not None:
            await self._write(response, {"choices": [], "usage": self.usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        """The older endpoint: texts, and log-probabilities as lists side by side."""
        body = await request.json()
        self.requests.append(({k.lower(): v for k, v in request.headers.items()}, body))
        if not body.get("stream"):
            return web.json_response({"choices": [self._text(self.words, body, "stop")], "usage": self.usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for word in self.words:
            await self._write(response, {"choices": [self._text((word,), body)]})
        await self._write(response, {"choices": [self._text((), body, "stop")]})
        await self._write(response, {"choices": [], "usage": self.usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _text(self, words: tuple[str, ...], body: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": "".join(words), "finish_reason": finish, "logprobs": None}
        if body.get("logprobs") is not None and words:
            choice["logprobs"] = {
                "tokens": list(words),
                "token_logprobs": [-0.5] * len(words),
                "top_logprobs": [{word: -0.5, "other": -1.5} for word in words],
                "text_offset": [0] * len(words),
            }
        return choice

    def _whole(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(self.words)}
        answer = {
            "id": self.answer_id,
            "object": "chat.completion",
            "created": 1,
            "model": "remote",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        return answer | ({"usage": self.usage} if self.usage is not None else {})

    async def _frame(self, response: web.StreamResponse, delta: dict[str, Any], finish: str | None = None) -> None:
        await self._write(response, {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    async def _write(self, response: web.StreamResponse, chunk: dict[str, Any]) -> None:
        chunk = {"id": self.answer_id, "object": "chat.completion.chunk", "created": 1, "model": "remote", **chunk}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Yields the base URL."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/completions", self._complete)
        server = TestServer(app)
        await server.start_server()
        yield str(server.make_url("/v1"))
        self.released.set()
        await server.close()
