"""1,000 streams at once through one gateway: no delta lost or out of order; added TTFT and memory a stream printed."""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn

from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.sockets import InLoopServer

NUM_STREAMS, NUM_DELTAS = 1000, 20


def resident_bytes() -> int:
    """This process's memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


class Stream:
    """One streamed chat over a raw connection."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.deltas: list[str] = []
        self.first = asyncio.Event()
        self.ttft_s = 0.0

    async def run(self, gateway: Gateway, port: int) -> None:
        body = msgspec.json.encode(
            {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"stream {self.number}"}]}
        )
        begun = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {gateway.tenant.key}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        assert b" 200 " in await reader.readline()
        while (line := (await reader.readline()).strip()) != b"data: [DONE]":
            if not line.startswith(b"data: "):
                continue
            [choice] = msgspec.json.decode(line[6:])["choices"]
            if content := choice["delta"].get("content"):
                if not self.first.is_set():
                    self.ttft_s = time.perf_counter() - begun
                    self.first.set()
                self.deltas.append(content)
        writer.close()


@pytest.mark.heavy
async def test_a_thousand_streams_lose_and_reorder_nothing(start_gateway: StartGateway) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))

    def script(request: Any) -> Script:
        return Script(steps=tuple(f"{number};" for number in range(NUM_DELTAS)), gate_at=1)

    engine = ScriptedEngine(script)
    engine.gate.clear()
    gateway = await start_gateway(engine, cache_enabled=False, redis_deadline_ms=10_000)
    server = InLoopServer(uvicorn.Config(gateway.app, port=0, log_config=None, lifespan="off", backlog=4096))
    port = await server.listen()
    before = resident_bytes()
    streams = [Stream(number) for number in range(NUM_STREAMS)]
    tasks = [asyncio.create_task(stream.run(gateway, port)) for stream in streams]
    await asyncio.gather(*(stream.first.wait() for stream in streams))
    open_bytes = resident_bytes() - before
    assert len(engine.running) == NUM_STREAMS

    begun = time.perf_counter()
    engine.gate.set()
    await asyncio.gather(*tasks)
    took = time.perf_counter() - begun
    await server.close()

    expected = [f"{number};" for number in range(NUM_DELTAS)]
    assert all(stream.deltas == expected for stream in streams)
    async with asyncio.timeout(60):
        while len(await gateway.ledger()) < NUM_STREAMS:  # noqa: ASYNC110 - rows may come by way of the journal
            await asyncio.sleep(0.5)
    assert len(await gateway.ledger()) == NUM_STREAMS
    waits = sorted(stream.ttft_s for stream in streams)
    print(
        f"{NUM_STREAMS} streams opened at once: TTFT p50 {waits[NUM_STREAMS // 2]:.2f} s, p99 "
        f"{waits[NUM_STREAMS * 99 // 100]:.2f} s; {open_bytes / NUM_STREAMS / 1024:.0f} KiB a stream (client's side "
        f"included); {NUM_STREAMS * (NUM_DELTAS - 1) / took:.0f} deltas/s"
    )
