"""SIGTERM while requests run: new ones are told to go elsewhere, those that run too long are cut off with a word."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.draining import InFlight
from tests.gateway.conftest import Gateway, StartGateway, until
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.raw_asgi import RawExchange

FOREVER = 1e6


def in_flight(gateway: Gateway) -> InFlight:
    found: InFlight = gateway.app.state.in_flight
    return found


async def halted(start_gateway: StartGateway) -> tuple[Gateway, ScriptedEngine]:
    """A gateway whose engine says one word and then waits for its gate."""
    engine = ScriptedEngine(Script(gate_at=1))
    engine.gate.clear()
    return await start_gateway(engine), engine


async def test_what_runs_may_end_and_what_comes_is_503(start_gateway: StartGateway) -> None:
    gateway, engine = await halted(start_gateway)
    running = asyncio.create_task(gateway.chat("one", stream=True))
    await until(lambda: bool(engine.running))

    draining = asyncio.create_task(in_flight(gateway).drain(FOREVER))
    await until(lambda: in_flight(gateway).refusing)
    refused = await gateway.chat("two")

    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "server_stopping"
    assert refused.headers["connection"] == "close"
    assert int(refused.headers["retry-after"]) >= 1
    assert (await gateway.client.get("/health")).status_code == 200
    assert not draining.done()
    engine.gate.set()
    assert (await running).text.endswith("data: [DONE]\n\n")
    await draining
    assert [row.status for row in await gateway.ledger()] == ["ok"]


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/chat/completions", {}, b"data: [DONE]\n\n"),
        ("/v1/responses", {}, None),
        ("/v1/messages", {"max_tokens": 8}, None),
    ],
)
async def test_a_stream_that_runs_too_long_ends_with_an_error_event(
    start_gateway: StartGateway, path: str, body: dict[str, Any], last: bytes | None
) -> None:
    gateway, engine = await halted(start_gateway)
    messages = "input" if path == "/v1/responses" else "messages"
    asked = {"model": "m", messages: [{"role": "user", "content": "hi"}], "stream": True, **body}
    async with RawExchange(gateway, "POST", path, asked) as raw:
        assert (await raw.start())["status"] == 200
        text = b""

        await in_flight(gateway).drain(0)

        while piece := await raw.chunk():
            text += piece
            if b"The server is stopping." in text:
                break
    assert text.endswith(last or b"\n\n")
    assert not engine.running
    assert len(await gateway.ledger()) == 1  # what was made is on the books


async def test_a_plain_call_that_runs_too_long_is_503(start_gateway: StartGateway) -> None:
    gateway, engine = await halted(start_gateway)
    running = asyncio.create_task(gateway.chat("one"))
    await until(lambda: bool(engine.running))

    await in_flight(gateway).drain(0)

    answer = await running
    assert answer.status_code == 503
    assert msgspec.json.decode(answer.content)["error"]["code"] == "server_stopping"
    await until(lambda: not engine.running)
