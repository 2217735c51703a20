"""The wire rules of streams, the end of a stream that fails, and what happens when the client leaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from billing.tables import EntryStatus
from engine.errors import EngineUnavailable, InvalidRequest, RequestFailed
from engine.types import EngineRequest
from tests.gateway.conftest import Gateway, StartGateway, frames, until
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.raw_asgi import RawExchange

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def slow(*steps: str, gate_at: int) -> ScriptedEngine:
    """An engine that stops before step `gate_at` until its gate is opened."""
    engine = ScriptedEngine(Script(steps=steps, gate_at=gate_at))
    engine.gate.clear()
    return engine


async def test_headers_and_frames_are_what_sdks_need(gateway: Gateway) -> None:
    response = await gateway.chat(stream=True)

    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    blocks = response.text.split("\n\n")
    assert all(block.startswith("data: ") for block in blocks[:-1])
    assert blocks[-2:] == ["data: [DONE]", ""]


async def test_every_chunk_has_the_same_head(gateway: Gateway) -> None:
    chunks = frames(await gateway.chat(stream=True))

    heads = {(c["id"], c["created"], c["model"], c["object"], c["system_fingerprint"]) for c in chunks}
    assert len(heads) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in chunk for chunk in chunks)


async def test_with_n_roles_come_first_in_order_once_each_and_every_choice_finishes_once(gateway: Gateway) -> None:
    chunks = frames(await gateway.chat(stream=True, n=3))

    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [choice["index"] for choice in choices[:3]] == [0, 1, 2]
    assert all(choice["delta"] == {"role": "assistant", "content": ""} for choice in choices[:3])
    assert not any("role" in choice["delta"] for choice in choices[3:])
    finishes = [choice for choice in choices if choice["finish_reason"] is not None]
    assert sorted(choice["index"] for choice in finishes) == [0, 1, 2]
    assert all(choice["delta"] == {} for choice in finishes)


@pytest.mark.parametrize("n", [1, 3])
async def test_usage_comes_once_last_and_equals_the_plain_answers(gateway: Gateway, n: int) -> None:
    fields = {"n": n, "max_tokens": 5, "cache_control": None}
    plain = (await gateway.chat("count", **fields)).json()
    chunks = frames(await gateway.chat("count", stream=True, stream_options={"include_usage": True}, **fields))

    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == plain["usage"]
    assert plain["usage"]["completion_tokens"] == 2 * n
    assert plain["usage"]["total_tokens"] == plain["usage"]["prompt_tokens"] + 2 * n


async def test_continuous_usage_grows_with_the_answer(gateway: Gateway) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}

    chunks = frames(await gateway.chat(stream=True, stream_options=options))

    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 2


async def test_line_separators_are_escaped(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(steps=("a\u2028b", "c\u2029d", "e\u0085f"))))

    response = await gateway.chat(stream=True)

    assert not {"\u2028", "\u2029", "\u0085"} & set(response.text)
    joined = "".join(c["choices"][0]["delta"].get("content", "") for c in frames(response))
    assert joined == "a\u2028bc\u2029de\u0085f"


# -- C41: errors before and after the first token


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("the prompt is odd", param="messages"), 400),
        (RequestFailed("NaN logits in layer 3"), 500),
        (EngineUnavailable("gone"), 503),
    ],
)
async def test_an_error_before_the_first_token_is_a_real_status(
    start_gateway: StartGateway, error: Any, status: int
) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(fail_at=0, error=error)))

    response = await gateway.chat(stream=True)

    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert "layer 3" not in response.text


async def test_an_error_after_the_first_token_is_an_error_frame_then_done(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(fail_at=1, error=RequestFailed("NaN logits"))))

    response = await gateway.chat(stream=True)

    assert response.status_code == 200
    error = frames(response)[-1]["error"]
    assert (error["type"], error["param"], error["code"]) == ("server_error", None, None)
    assert "NaN" not in error["message"]
    [row] = await gateway.ledger()
    assert (row.status, row.output_tokens) == (EntryStatus.FAILED, 1)


async def test_a_deterministic_fault_tells_the_sdk_not_to_retry(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(fail_at=0, error=RequestFailed("poisoned"))))

    response = await gateway.chat()

    assert response.status_code == 500
    assert response.headers["x-should-retry"] == "false"


# -- C39 and case 1 of the money: the client leaves


async def test_leaving_a_stream_aborts_the_engine_and_bills_what_was_made(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(slow(*"abcdefgh", gate_at=3))
    async with RawExchange(gateway, "POST", "/v1/chat/completions", CHAT) as raw:
        await raw.start()
        for _ in range(4):  # the role, a, b, c
            await raw.chunk()
        raw.leave()
        await raw.finished()

    assert len(gateway.engine.aborted) == 1
    [row] = await gateway.ledger()
    assert (row.status, row.output_tokens) == (EntryStatus.CLIENT_DISCONNECT, 3)
    assert row.input_tokens == len(gateway.engine.requests[0].prompt_token_ids)


async def test_leaving_a_plain_call_aborts_the_engine_and_bills_what_was_made(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(slow(*"abcdefgh", gate_at=2))
    async with RawExchange(gateway, "POST", "/v1/chat/completions", {**CHAT, "stream": False}) as raw:
        await gateway.engine.stepped.wait()
        raw.leave()
        await raw.finished()

    assert len(gateway.engine.aborted) == 1
    [row] = await gateway.ledger()
    assert row.status is EntryStatus.CLIENT_DISCONNECT
    assert row.output_tokens >= 1


async def test_leaving_before_the_first_token_costs_nothing(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(slow(*"abc", gate_at=0))
    async with RawExchange(gateway, "POST", "/v1/chat/completions", CHAT) as raw:
        await until(lambda: bool(gateway.engine.requests))
        raw.leave()
        await raw.finished()

    assert len(gateway.engine.aborted) == 1
    [row] = await gateway.ledger()
    assert (row.status, row.amount_nano_usd) == (EntryStatus.CLIENT_DISCONNECT, 0)


async def test_after_a_client_has_left_nothing_is_held(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(slow(*"abcdefgh", gate_at=2))
    await gateway.set_limit(gateway.tenant, "concurrency", 1)
    async with RawExchange(gateway, "POST", "/v1/chat/completions", CHAT) as raw:
        await raw.start()
        raw.leave()
        await raw.finished()
    await gateway.ledger()
    gateway.engine.gate.set()

    assert (await gateway.chat("next")).status_code == 200
    assert gateway.parts.billing.admission.num_live == 0


async def test_a_time_limit_ends_the_request_with_408(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(slow(*"abc", gate_at=1))

    response = await gateway.post("/v1/chat/completions", {**CHAT, "stream": False}, x_weir_timeout="0.05")

    assert response.status_code == 408
    assert response.headers["x-should-retry"] == "false"
    [row] = await gateway.ledger()
    assert (row.status, row.output_tokens) == (EntryStatus.TIMEOUT, 1)


async def test_the_finish_frame_waits_for_the_durable_row(gateway: Gateway) -> None:
    booked: list[str] = []
    book = gateway.parts.billing.ledger.book

    async def book_and_note(entry: Any) -> Any:
        result = await book(entry)
        booked.append(entry.request_id)
        return result

    gateway.parts.billing.ledger.book = book_and_note  # type: ignore[method-assign]
    async with RawExchange(gateway, "POST", "/v1/chat/completions", CHAT) as raw:
        await raw.start()
        while True:
            body = await raw.chunk()
            if b'"finish_reason":"stop"' in body:
                break
            assert booked == []
    assert len(booked) == 1


async def test_a_stream_is_as_dear_as_a_plain_call(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(cache_enabled=False)
    await gateway.chat("same")
    await gateway.chat("same", stream=True)

    plain, streamed = await gateway.ledger()
    assert plain.amount_nano_usd == streamed.amount_nano_usd > 0
    assert plain.amount_nano_usd == plain.input_amount_nano + plain.output_amount_nano


async def test_identical_concurrent_questions_make_one_generation(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(slow("one", " answer", gate_at=1))
    calls = [asyncio.create_task(gateway.chat("same", temperature=0)) for _ in range(4)]
    await until(lambda: gateway.parts.billing.admission.num_live == 4)
    gateway.engine.gate.set()
    answers = await asyncio.gather(*calls)

    assert len(gateway.engine.requests) == 1
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {"one answer"}
    rows = await gateway.ledger()
    assert sorted(row.kind for row in rows) == ["cache_hit", "cache_hit", "cache_hit", "usage"]
    assert sum(row.amount_nano_usd > 0 for row in rows) == 1


async def test_tokens_split_inside_a_character_are_never_shown(start_gateway: StartGateway) -> None:
    def script(request: EngineRequest) -> Script:
        return Script(steps=("", "", "", "🫠"))

    gateway = await start_gateway(ScriptedEngine(script))

    chunks = frames(await gateway.chat(stream=True))

    contents = [c["choices"][0]["delta"].get("content") for c in chunks]
    assert contents == ["", "🫠", None]


async def test_a_stream_is_strict_json(start_gateway: StartGateway) -> None:
    gateway = await start_gateway()

    response = await gateway.chat(stream=True, logprobs=True, top_logprobs=5)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    for block in response.text.split("\n\n")[:-2]:
        json.loads(block.removeprefix("data: "), parse_constant=refuse)
