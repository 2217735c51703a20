"""A load generator for one URL: closed loop (N connections, saturation) or open loop (Poisson arrivals at a rate).

Raw HTTP/1.1 over asyncio streams on uvloop. In open loop a request's latency counts from when it should have been
sent, so that a stalled server cannot hide behind a stalled client.
    python -m benchmarks.load --url http://127.0.0.1:8000/v1/chat/completions --key K --mode open --rate 100
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
import urllib.parse
from dataclasses import dataclass, field

import uvloop


@dataclass
class Outcome:
    """Latencies in milliseconds of the answers with status 200, and how many had another status or broke."""

    latencies_ms: list[float] = field(default_factory=list)
    errors: int = 0
    first_error: str = ""


class Connection:
    """One keep-alive connection that asks and reads a whole answer (content-length or chunked)."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            body = await self._chunked()
        else:
            start = lower.index(b"content-length:") + 15
            body = await self._reader.readexactly(int(lower[start : lower.index(b"\r\n", start)]))
        if b"connection: close" in lower:
            self.close()
        return status, body

    async def _chunked(self) -> bytes:
        assert self._reader is not None
        body = b""
        while True:
            size = int((await self._reader.readline()).strip(), 16)
            body += await self._reader.readexactly(size + 2)
            if size == 0:
                return body

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def build_request(url: str, key: str, model: str, number: int, prompt: str, headers: dict[str, str]) -> bytes:
    """One POST of a chat body; `{n}` in the prompt becomes the request's number, so that no cache can answer."""
    parts = urllib.parse.urlsplit(url)
    message = {"role": "user", "content": prompt.replace("{n}", str(number))}
    body = json.dumps({"model": model, "max_tokens": 16, "messages": [message]}).encode()
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\n{extra}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _ask_once(connection: Connection, request: bytes, began: float, outcome: Outcome) -> None:
    try:
        status, body = await connection.ask(request)
    except (OSError, asyncio.IncompleteReadError) as exc:
        connection.close()
        outcome.errors += 1
        outcome.first_error = outcome.first_error or repr(exc)
        return
    if status == 200:
        outcome.latencies_ms.append((time.perf_counter() - began) * 1000)
    else:
        outcome.errors += 1
        outcome.first_error = outcome.first_error or f"{status} {body[:300]!r}"


async def closed_loop(options: argparse.Namespace, headers: dict[str, str]) -> tuple[Outcome, float]:
    """`--connections` clients asking back to back for `--seconds`."""
    parts = urllib.parse.urlsplit(options.url)
    outcome, number = Outcome(), itertools.count(options.first)
    begun = time.perf_counter()

    async def client() -> None:
        connection = Connection(parts.hostname or "", parts.port or 80)
        while time.perf_counter() - begun < options.seconds:
            request = build_request(options.url, options.key, options.model, next(number), options.prompt, headers)
            await _ask_once(connection, request, time.perf_counter(), outcome)
        connection.close()

    await asyncio.gather(*(client() for _ in range(options.connections)))
    return outcome, time.perf_counter() - begun


async def open_loop(options: argparse.Namespace, headers: dict[str, str]) -> tuple[Outcome, float]:
    """Poisson arrivals at `--rate` a second for `--seconds`; a free connection is reused, else a new one is opened."""
    parts = urllib.parse.urlsplit(options.url)
    outcome = Outcome()
    idle: list[Connection] = []
    tasks: set[asyncio.Task[None]] = set()
    arrivals = random.Random(7)
    begun = due = time.perf_counter()

    async def one(number: int, due: float) -> None:
        connection = idle.pop() if idle else Connection(parts.hostname or "", parts.port or 80)
        request = build_request(options.url, options.key, options.model, number, options.prompt, headers)
        await _ask_once(connection, request, due, outcome)
        idle.append(connection)

    number = options.first
    while due - begun < options.seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(number, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
        due += arrivals.expovariate(options.rate)
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    return outcome, time.perf_counter() - begun


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie; NaN for none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="stub")
    parser.add_argument("--mode", choices=["closed", "open"], required=True)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--prompt", default="Question {n}: what is the capital of France?")
    parser.add_argument("--first", type=int, default=0, help="the first request's number; 0: one of no other run")
    parser.add_argument("--header", action="append", default=[], help="name=value")
    options = parser.parse_args()
    # A second run with the same numbers would be answered from the cache.
    options.first = options.first or random.SystemRandom().randrange(10**8, 9 * 10**8)
    headers = dict(item.split("=", 1) for item in options.header)
    outcome, seconds = await (closed_loop if options.mode == "closed" else open_loop)(options, headers)
    latencies = outcome.latencies_ms
    report = {
        "rps": len(latencies) / seconds,
        "p50_ms": percentile(latencies, 0.50),
        "p99_ms": percentile(latencies, 0.99),
        "answers": len(latencies),
        "errors": outcome.errors,
        "first_error": outcome.first_error,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    uvloop.run(main())
