"""An OpenAI-compatible upstream that answers every POST with one fixed chat completion after a delay.

A bare asyncio protocol on uvloop, so that the stub is never what is measured.
    python -m benchmarks.stub_upstream --port 9001 --delay-ms 50
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import cast

import uvloop

ANSWER = json.dumps(
    {
        "id": "chatcmpl-stub",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "stub",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "The capital of France is Paris."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 24, "completion_tokens": 8, "total_tokens": 32},
    }
).encode()
RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
    + str(len(ANSWER)).encode()
    + b"\r\n\r\n"
    + ANSWER
)


class Stub(asyncio.Protocol):
    """One connection: reads a request by its content-length, answers after `delay_s`; keep-alive, no pipelining."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length":
                length = int(value)
        if len(body) < length:
            return
        self._buffer = body[length:]
        if self._delay_s:
            asyncio.get_running_loop().call_later(self._delay_s, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(RESPONSE)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay-ms", type=float, default=50.0)
    options = parser.parse_args()
    server = await asyncio.get_running_loop().create_server(
        lambda: Stub(options.delay_ms / 1000), "127.0.0.1", options.port, backlog=4096
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
