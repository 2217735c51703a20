"""How a plain and a streamed answer leave, the same for every endpoint that writes OpenAI's frames."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from litestar import Request
from litestar.response.base import ASGIResponse

from gateway.calls import Choice
from gateway.errors import GatewayError
from gateway.pipeline import Exchange
from gateway.streaming import EventStream, json_response, openai_error_frames, until_disconnect


async def plain_answer(
    request: Request[Any, Any, Any], exchange: Exchange, whole: Callable[[list[Choice]], Any]
) -> ASGIResponse:
    """Runs the exchange to its end, or until the client leaves. Raises: GatewayError."""
    choices = await until_disconnect(request, exchange.collect())
    return json_response(whole(choices), headers=exchange.headers)


async def streamed_answer(
    request: Request[Any, Any, Any],
    exchange: Exchange,
    frames: AsyncGenerator[bytes, None],
    *,
    on_error: Callable[[GatewayError], bytes] = openai_error_frames,
) -> ASGIResponse:
    """Waits for the first frame, so that an error before it is a real status, then streams. Raises: GatewayError."""
    try:
        first = await until_disconnect(request, _next(frames))
    except BaseException:
        await frames.aclose()
        raise
    return EventStream(first, frames, headers=exchange.headers, on_error=on_error)


async def _next(frames: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(frames)
