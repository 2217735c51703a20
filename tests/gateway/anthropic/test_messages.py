"""/v1/messages over HTTP and by Anthropic's own SDK."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import msgspec
import pytest

from engine.errors import RequestFailed
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.surface import roomy_model

NOW = {"name": "now", "description": "The time", "input_schema": {"type": "object", "properties": {}}}
CALL = ("Let me see.", '\n<tool_call>{"name": "now", "arg', 'uments": {"z": 1}}</tool_call>')


async def say(gateway: Gateway, content: Any = "hi", **fields: Any) -> httpx.Response:
    body = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": content}], **fields}
    return await gateway.post("/v1/messages", body)


async def start(start_gateway: StartGateway, *steps: str, **script: Any) -> Gateway:
    return await start_gateway(
        ScriptedEngine(Script(steps=steps or ("Hello", " world"), **script)), text_model=roomy_model()
    )


def prompt_of(gateway: Gateway, number: int = -1) -> str:
    return roomy_model().decode(gateway.engine.requests[number].prompt_token_ids)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    out = []
    for block in response.text.split("\n\n"):
        if block:
            event, data = block.split("\n")
            decoded = msgspec.json.decode(data.removeprefix("data: "))
            assert event == f"event: {decoded['type']}"
            out.append(decoded)
    return out


async def test_a_plain_message_has_anthropics_shape(gateway: Gateway) -> None:
    body = (await say(gateway, system="Be brief.")).json()

    assert body["id"].startswith("msg_")
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", "m")
    assert body["content"] == [{"type": "text", "text": "Hello world"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    assert body["usage"]["output_tokens"] == 2
    assert body["usage"]["input_tokens"] == len(gateway.engine.requests[0].prompt_token_ids)


async def test_events_come_in_anthropics_order(gateway: Gateway) -> None:
    got = events(await say(gateway, stream=True))

    assert [event["type"] for event in got] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert got[0]["message"]["content"] == []
    assert got[0]["message"]["usage"]["input_tokens"] > 0
    assert got[6]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert got[6]["usage"]["output_tokens"] == 2


async def test_a_call_is_a_block_of_its_own_whose_input_streams(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, *CALL)

    plain = (await say(gateway, tools=[NOW])).json()
    got = events(await say(gateway, tools=[NOW], stream=True))

    text, call = plain["content"]
    assert text == {"type": "text", "text": "Let me see."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "now", {"z": 1})
    assert plain["stop_reason"] == "tool_use"
    starts = [event for event in got if event["type"] == "content_block_start"]
    assert [event["index"] for event in starts] == [0, 1]
    assert starts[1]["content_block"]["input"] == {}
    parts = [
        event["delta"]["partial_json"] for event in got if event.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert "".join(parts) == '{"z": 1}'
    assert got[-2]["delta"]["stop_reason"] == "tool_use"


async def test_calls_and_results_go_back_into_the_prompt(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "time?"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "now", "input": {"z": 1}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]

    response = await say(gateway, messages=messages)

    assert response.status_code == 200, response.text
    assert prompt_of(gateway) == (
        'user\ntime?\nassistant\n<call>now {"z": 1}</call>\ntool\nnoon\nuser\nAnd now?\nassistant\n'
    )


async def test_a_prefilled_answer_is_gone_on_with(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway)

    await say(gateway, messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "Once upon"}])

    assert prompt_of(gateway) == "user\na\nassistant\nOnce upon"


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ({"type": "auto"}, False),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "now"}, True),
        ({"type": "none"}, False),
    ],
)
async def test_every_tool_choice_is_held_to(start_gateway: StartGateway, choice: dict[str, Any], forced: bool) -> None:
    gateway = await start(start_gateway)

    assert (await say(gateway, tools=[NOW], tool_choice=choice)).status_code == 200

    assert (gateway.engine.requests[0].sampling.grammar is not None) == forced


async def test_the_token_limit_is_named_as_the_reason(gateway: Gateway) -> None:
    assert (await say(gateway, max_tokens=1)).json()["stop_reason"] == "max_tokens"


async def test_sampling_parameters_reach_the_engine(gateway: Gateway) -> None:
    await say(gateway, temperature=0.25, top_p=0.5, top_k=7, stop_sequences=["END", "\n\n"], metadata={"user_id": "u1"})

    sampling = gateway.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 7)
    assert sampling.stop == ("END", "\n\n")
    assert [row.end_user for row in await gateway.ledger()] == ["u1"]


async def test_tokens_are_counted_without_generating(gateway: Gateway) -> None:
    counted = await gateway.post(
        "/v1/messages/count_tokens", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    )
    made = (await say(gateway)).json()

    assert counted.json() == {"input_tokens": made["usage"]["input_tokens"]}
    assert len(gateway.engine.requests) == 1


@pytest.mark.parametrize(
    ("fields", "status", "kind", "named"),
    [
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"temperature": 2}, 400, "invalid_request_error", "temperature"),
        ({"model": "nope"}, 404, "not_found_error", "nope"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "image"),
        ({"tools": [NOW], "tool_choice": {"type": "tool", "name": "x"}}, 400, "invalid_request_error", "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "tool_choice.name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            400,
            "invalid_request_error",
            "tool_use_id",
        ),
    ],
)
async def test_errors_stand_in_anthropics_envelope(
    gateway: Gateway, fields: dict[str, Any], status: int, kind: str, named: str
) -> None:
    response = await say(gateway, **fields)

    assert response.status_code == status, response.text
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert named in body["error"]["message"]
    assert body["request_id"] == response.headers["x-request-id"]
    assert gateway.engine.requests == []


async def test_a_bad_key_is_an_authentication_error(gateway: Gateway) -> None:
    response = await gateway.client.post("/v1/messages", json={}, headers={"x-api-key": "nope"})

    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"


async def test_an_error_after_the_first_token_is_an_error_event(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, fail_at=1, error=RequestFailed("inside"))

    got = events(await say(gateway, stream=True))

    assert got[-1]["type"] == "error"
    assert got[-1]["error"]["type"] == "api_error"
    assert "inside" not in got[-1]["error"]["message"]


# -- Anthropic's own SDK


def client_of(gateway: Gateway) -> anthropic.AsyncAnthropic:
    import httpx2

    transport = httpx2.ASGITransport(app=gateway.app)  # type: ignore[arg-type]
    return anthropic.AsyncAnthropic(
        api_key=gateway.tenant.key, base_url="http://weir", http_client=httpx2.AsyncClient(transport=transport)
    )


async def test_the_sdk_reads_a_message_and_its_stream(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, *CALL)
    async with client_of(gateway) as client:
        ask: dict[str, Any] = {
            "model": "m",
            "max_tokens": 64,
            "messages": [{"role": "user", "content": "time?"}],
            "tools": [NOW],
        }
        plain = await client.messages.create(**ask)
        async with client.messages.stream(**ask) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        counted = await client.messages.count_tokens(model="m", messages=ask["messages"], tools=[NOW])

    assert "".join(texts) == "Let me see."
    assert [block.type for block in final.content] == ["text", "tool_use"]
    assert final.content[1].input == plain.content[1].input == {"z": 1}  # type: ignore[union-attr]
    assert final.stop_reason == plain.stop_reason == "tool_use"
    assert final.usage.output_tokens == plain.usage.output_tokens
    assert counted.input_tokens == plain.usage.input_tokens


async def test_the_sdk_raises_its_own_errors(gateway: Gateway) -> None:
    async with client_of(gateway) as client:
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            await client.messages.create(model="x", max_tokens=1, messages=[{"role": "user", "content": "a"}])
        with pytest.raises(anthropic.BadRequestError, match="messages"):
            await client.messages.create(model="m", max_tokens=1, messages=[])
