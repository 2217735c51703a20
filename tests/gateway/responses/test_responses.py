"""/v1/responses over HTTP: the object, its events in order, what is kept, and whose it is."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest

from billing.principal import Principal
from engine.errors import RequestFailed
from gateway.responses.service import ResponseService
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.raw_asgi import RawExchange
from tests.gateway.surface import roomy_model

NOW = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
CALL = ("Let me see.", '\n<tool_call>{"name": "now", "arg', 'uments": {"z": 1}}</tool_call>')


async def respond(gateway: Gateway, input: Any = "hi", **fields: Any) -> httpx.Response:
    tenant = fields.pop("tenant", None)
    return await gateway.post("/v1/responses", {"model": "m", "input": input, **fields}, tenant)


async def read(gateway: Gateway, response_id: str) -> httpx.Response:
    return await gateway.client.get(f"/v1/responses/{response_id}", headers=gateway.tenant.headers)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The decoded events; each frame's `event:` line must name its type."""
    assert response.headers["content-type"].startswith("text/event-stream")
    out = []
    for block in response.text.split("\n\n"):
        if block:
            event, data = block.split("\n")
            decoded = msgspec.json.decode(data.removeprefix("data: "))
            assert event == f"event: {decoded['type']}"
            out.append(decoded)
    return out


async def start(start_gateway: StartGateway, *steps: str, **script: Any) -> Gateway:
    return await start_gateway(
        ScriptedEngine(Script(steps=steps or ("Hello", " world"), **script)), text_model=roomy_model()
    )


def prompt_of(gateway: Gateway, number: int = -1) -> str:
    return roomy_model().decode(gateway.engine.requests[number].prompt_token_ids)


def principal_of(gateway: Gateway) -> Principal:
    tenant = gateway.tenant
    return Principal(
        tenant_id=tenant.id, tenant_slug="acme", project_id=tenant.project_id, project_slug="app",
        key_id=tenant.key_id, key_name="test", scopes=frozenset(),
    )  # fmt: skip


async def until(gateway: Gateway, response_id: str, *statuses: str) -> dict[str, Any]:
    for _ in range(6000):
        got = (await read(gateway, response_id)).json()
        if got["status"] in statuses:
            return dict(got)
        await asyncio.sleep(0.01)
    raise AssertionError(got)


async def until_running(gateway: Gateway, *, running: bool = True) -> None:
    for _ in range(6000):
        if bool(gateway.engine.running) == running:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(gateway.engine.running)


async def test_a_plain_response_has_every_field_that_clients_read(gateway: Gateway) -> None:
    body = (await respond(gateway, instructions="Be brief.", metadata={"k": "v"}, temperature=0.5)).json()

    assert body["id"].startswith("resp_")
    assert (body["object"], body["status"], body["error"]) == ("response", "completed", None)
    [item] = body["output"]
    assert item["id"].startswith("msg_")
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "Hello world", "annotations": [], "logprobs": []}]
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + 2
    assert body["usage"]["input_tokens_details"] == {"cached_tokens": 0}
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
    assert (body["instructions"], body["metadata"], body["temperature"]) == ("Be brief.", {"k": "v"}, 0.5)
    assert (body["tool_choice"], body["tools"], body["parallel_tool_calls"]) == ("auto", [], True)


async def test_events_come_in_the_order_that_clients_need(gateway: Gateway) -> None:
    got = events(await respond(gateway, stream=True))

    assert [event["type"] for event in got] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in got] == list(range(10))
    assert got[2]["item"]["content"] == []
    assert "".join(event["delta"] for event in got if event["type"].endswith("delta")) == "Hello world"
    assert all(event["item_id"] == got[2]["item"]["id"] for event in got[3:8])
    assert got[8]["item"]["content"][0]["text"] == "Hello world"


async def test_indices_restart_in_every_item_of_a_stream(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, *CALL)

    got = events(await respond(gateway, tools=[NOW], stream=True))

    by_item: dict[int, list[dict[str, Any]]] = {}
    for event in got:
        if "output_index" in event:
            by_item.setdefault(event["output_index"], []).append(event)
    assert list(by_item) == [0, 1]
    assert {event["content_index"] for event in by_item[0] if "content_index" in event} == {0}
    kinds = [event["type"] for event in by_item[1]]
    assert kinds[0] == "response.output_item.added"
    assert kinds[-2:] == ["response.function_call_arguments.done", "response.output_item.done"]
    assert set(kinds[1:-2]) == {"response.function_call_arguments.delta"}
    added = by_item[1][0]["item"]
    assert (added["type"], added["name"], added["arguments"]) == ("function_call", "now", "")
    assert by_item[1][-1]["item"]["arguments"] == '{"z": 1}'


@pytest.mark.parametrize("steps", [("Hello", " world"), CALL])
async def test_a_streams_last_object_is_the_plain_calls(start_gateway: StartGateway, steps: tuple[str, ...]) -> None:
    gateway = await start(start_gateway, *steps)

    plain = (await respond(gateway, tools=[NOW])).json()
    streamed = events(await respond(gateway, tools=[NOW], stream=True))[-1]["response"]

    def without_ids(value: Any) -> Any:
        if isinstance(value, dict):
            hidden = ("id", "call_id", "created_at", "completed_at")
            return {key: without_ids(item) for key, item in value.items() if key not in hidden}
        return [without_ids(item) for item in value] if isinstance(value, list) else value

    assert without_ids(streamed) == without_ids(plain)


async def test_what_the_token_limit_cut_is_incomplete(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway)

    plain = (await respond(gateway, max_output_tokens=1)).json()
    streamed = events(await respond(gateway, max_output_tokens=1, stream=True))

    assert (plain["status"], plain["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert plain["output"][0]["status"] == "incomplete"
    assert streamed[-1]["type"] == "response.incomplete"
    assert streamed[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_an_error_before_the_first_token_is_a_real_status(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, fail_at=0, error=RequestFailed("broken"))

    response = await respond(gateway, stream=True)

    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"


async def test_an_error_later_is_an_event_that_every_client_reads(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, fail_at=1, error=RequestFailed("broken"))

    got = events(await respond(gateway, stream=True))

    error = got[-1]
    assert error["type"] == "error"
    assert error["sequence_number"] == len(got) - 1
    assert error["message"] == error["error"]["message"]
    assert {"code", "message", "param", "error"} <= set(error)
    assert "broken" not in error["message"]


async def test_a_conversation_goes_on_from_the_previous_response(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway)
    first = (await respond(gateway, "My name is Ada.", instructions="Be brief.")).json()

    second = (await respond(gateway, "And yours?", previous_response_id=first["id"])).json()
    third = await respond(gateway, "Again?", previous_response_id=second["id"])

    assert third.status_code == 200
    assert prompt_of(gateway) == (
        "user\nMy name is Ada.\nassistant\nHello world\nuser\nAnd yours?\nassistant\nHello world\nuser\nAgain?\n"
        "assistant\n"
    )
    assert "system\nBe brief." in prompt_of(gateway, 0)


async def test_calls_and_their_outputs_go_back_into_the_prompt(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, *CALL)
    first = (await respond(gateway, "time?", tools=[NOW])).json()
    call = first["output"][1]

    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
    await respond(gateway, [output], previous_response_id=first["id"])

    assert prompt_of(gateway).endswith('assistant\nLet me see.<call>now {"z": 1}</call>\ntool\nnoon\nassistant\n')


async def test_an_unknown_previous_response_is_refused_by_code(gateway: Gateway) -> None:
    response = await respond(gateway, previous_response_id="resp_nope")

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "previous_response_not_found"
    assert response.json()["error"]["param"] == "previous_response_id"


async def test_a_kept_response_can_be_read_listed_and_deleted(gateway: Gateway) -> None:
    made = (await respond(gateway, [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}])).json()
    path, headers = f"/v1/responses/{made['id']}", gateway.tenant.headers

    assert (await read(gateway, made["id"])).json() == made
    listed = (await gateway.client.get(f"{path}/input_items?order=asc&limit=1", headers=headers)).json()
    assert [item["content"] for item in listed["data"]] == ["one"]
    assert listed["has_more"] is True
    rest = await gateway.client.get(f"{path}/input_items?order=asc&after={listed['last_id']}", headers=headers)
    assert [item["content"] for item in rest.json()["data"]] == ["two"]
    deleted = await gateway.client.delete(path, headers=headers)
    assert deleted.json() == {"id": made["id"], "object": "response", "deleted": True}
    assert (await read(gateway, made["id"])).status_code == 404
    assert (await respond(gateway, previous_response_id=made["id"])).status_code == 400


async def test_a_response_is_not_kept_when_asked_not_to(gateway: Gateway) -> None:
    made = (await respond(gateway, store=False)).json()

    assert made["store"] is False
    assert (await read(gateway, made["id"])).status_code == 404


async def test_an_operator_may_keep_only_what_is_asked_for(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(store_responses=False)

    silent, asked = (await respond(gateway)).json(), (await respond(gateway, store=True)).json()

    assert (await read(gateway, silent["id"])).status_code == 404
    assert (await read(gateway, asked["id"])).status_code == 200


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_another_tenants_response_does_not_exist(gateway: Gateway, method: str) -> None:
    made = (await respond(gateway)).json()
    other = await gateway.add_tenant("other")
    path = f"/v1/responses/{made['id']}" + ("/cancel" if method == "POST" else "")

    response = await gateway.client.request(method, path, headers=other.headers)

    assert response.status_code == 404
    assert (await respond(gateway, previous_response_id=made["id"], tenant=other)).status_code == 400
    assert (await read(gateway, made["id"])).status_code == 200


async def test_every_response_is_in_the_ledger(gateway: Gateway) -> None:
    await respond(gateway)
    await respond(gateway, stream=True)

    rows = await gateway.ledger()

    assert [(row.endpoint, row.output_tokens) for row in rows] == [("responses", 2), ("responses", 2)]


async def test_work_in_the_background_is_answered_at_once_and_read_later(gateway: Gateway) -> None:
    queued = (await respond(gateway, background=True)).json()

    assert (queued["status"], queued["output"]) == ("queued", [])
    done = await until(gateway, queued["id"], "completed")
    assert done["output"][0]["content"][0]["text"] == "Hello world"
    assert [row.output_tokens for row in await gateway.ledger()] == [2]


async def test_cancelling_stops_the_generation_and_bills_what_was_made(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, "a", "b", "c", gate_at=2)
    gateway.engine.gate.clear()
    queued = (await respond(gateway, background=True)).json()
    await until_running(gateway)

    cancelled = await gateway.post(f"/v1/responses/{queued['id']}/cancel", {})

    assert cancelled.json()["status"] == "cancelled"
    assert gateway.engine.running == set()
    assert [str(row.status) for row in await gateway.ledger()] == ["client_disconnect"]
    again = await gateway.post(f"/v1/responses/{queued['id']}/cancel", {})
    assert again.json()["status"] == "cancelled"


async def test_a_response_cancelled_elsewhere_is_stopped_at_the_next_beat(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, "a", "b", gate_at=1)
    gateway.engine.gate.clear()
    queued = (await respond(gateway, background=True)).json()
    await until_running(gateway)

    await gateway.parts.responses.store.advance({**queued, "status": "cancelled"})  # as another gateway would
    await gateway.parts.responses.beat()

    await until_running(gateway, running=False)
    assert (await read(gateway, queued["id"])).json()["status"] == "cancelled"


async def reread(gateway: Gateway, response_id: str, **query: Any) -> httpx.Response:
    query = {"stream": "true", **query}
    return await gateway.client.get(f"/v1/responses/{response_id}", params=query, headers=gateway.tenant.headers)


async def test_a_background_stream_tells_every_event_and_can_be_read_again_from_any(gateway: Gateway) -> None:
    got = events(await respond(gateway, background=True, stream=True))

    kinds = [event["type"] for event in got]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    assert [got[at]["response"]["status"] for at in (0, 1, 2, -1)] == ["queued", "queued", "in_progress", "completed"]
    made = got[0]["response"]["id"]
    assert got[-1]["response"] == (await read(gateway, made)).json()
    assert events(await reread(gateway, made)) == got
    for after in (0, 3, len(got) - 2):
        assert events(await reread(gateway, made, starting_after=after)) == got[after + 1 :]
    assert (await reread(gateway, made, starting_after=len(got) - 1)).text == ""
    assert len(await gateway.ledger()) == 1


async def test_a_reader_that_leaves_stops_nothing_and_finds_the_rest(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, "a", "b", "c", gate_at=1)
    gateway.engine.gate.clear()
    asked = {"model": "m", "input": "hi", "background": True, "stream": True}
    async with RawExchange(gateway, "POST", "/v1/responses", asked) as raw:
        assert (await raw.start())["status"] == 200
        created = msgspec.json.decode((await raw.chunk()).partition(b"data: ")[2])
        await until_running(gateway)
    made = created["response"]["id"]

    rest = asyncio.create_task(reread(gateway, made, starting_after=0))
    gateway.engine.gate.set()

    got = events(await rest)
    assert [event["sequence_number"] for event in got] == list(range(1, len(got) + 1))
    assert "".join(event["delta"] for event in got if event["type"].endswith("text.delta")) == "abc"
    assert got[-1]["type"] == "response.completed"


async def test_another_gateway_tells_the_events_once_the_response_has_ended(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, "a", "b", gate_at=1)
    gateway.engine.gate.clear()
    running = asyncio.create_task(respond(gateway, background=True, stream=True))
    await until_running(gateway)
    service = gateway.parts.responses
    [(made, log)] = service._logs.items()
    elsewhere = ResponseService(service.store, service._chat_calls, service._pipeline, timeout_s=1)
    frames = await elsewhere.events(principal_of(gateway), made, 2)

    gateway.engine.gate.set()

    assert [frame async for frame in frames] == log.frames[2:]
    assert (await running).content == b"".join(log.frames)


async def test_a_cancelled_background_stream_ends_with_that(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, "a", "b", gate_at=1)
    gateway.engine.gate.clear()
    running = asyncio.create_task(respond(gateway, background=True, stream=True))
    await until_running(gateway)
    [made] = gateway.parts.responses._logs

    await gateway.post(f"/v1/responses/{made}/cancel", {})

    last = events(await running)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.cancelled", "cancelled")
    assert [event["type"] for event in events(await reread(gateway, made))] == ["response.cancelled"]


async def test_a_failure_ends_a_background_stream_without_its_inside(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, fail_at=1, error=RequestFailed("secret detail"))

    got = await respond(gateway, background=True, stream=True)

    assert events(got)[-1]["type"] == "response.failed"
    assert "secret" not in got.text


async def test_only_what_was_asked_for_as_a_background_stream_is_streamed_again(gateway: Gateway) -> None:
    for fields in ({}, {"stream": True}, {"background": True}):
        made = await respond(gateway, **fields)
        response_id = (events(made)[0]["response"] if "stream" in fields else made.json())["id"]
        refused = await reread(gateway, response_id)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
    assert (await reread(gateway, "resp_nothing")).status_code == 404


async def test_a_synchronous_response_cannot_be_cancelled(gateway: Gateway) -> None:
    made = (await respond(gateway)).json()

    assert (await gateway.post(f"/v1/responses/{made['id']}/cancel", {})).status_code == 400


async def test_a_failure_in_the_background_is_told_without_its_inside(start_gateway: StartGateway) -> None:
    gateway = await start(start_gateway, fail_at=1, error=RequestFailed("secret detail"))

    queued = (await respond(gateway, background=True)).json()

    failed = await until(gateway, queued["id"], "failed")
    assert failed["error"]["code"] == "server_error"
    assert "secret" not in failed["error"]["message"]


async def test_logprobs_come_with_their_deltas(gateway: Gateway) -> None:
    include = ["message.output_text.logprobs"]

    plain = (await respond(gateway, include=include, top_logprobs=1)).json()
    streamed = events(await respond(gateway, include=include, top_logprobs=1, stream=True))

    deltas = [event for event in streamed if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for event in deltas for entry in event["logprobs"]] == ["Hello", " world"]
    assert [entry["token"] for entry in plain["output"][0]["content"][0]["logprobs"]] == ["Hello", " world"]
    assert len(plain["output"][0]["content"][0]["logprobs"][0]["top_logprobs"]) == 1


async def test_input_tokens_are_counted_without_generating(gateway: Gateway) -> None:
    counted = await gateway.post("/v1/responses/input_tokens", {"model": "m", "input": "hi"})
    made = (await respond(gateway, "hi")).json()

    assert counted.json() == {"object": "response.input_tokens", "input_tokens": made["usage"]["input_tokens"]}
    assert len(gateway.engine.requests) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "magic"}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input.[0].role"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "strin"}}}}, "text.format"),
        ({"background": True, "store": False}, "background"),
        ({"temperature": 3}, "temperature"),
    ],
)
async def test_bad_input_is_refused_in_this_apis_own_names(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    response = await gateway.post("/v1/responses", {"model": "m", "input": "hi", **fields})

    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert gateway.engine.requests == []


async def test_responses_past_their_retention_are_gone(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(responses_retention_s=0.001)
    made = (await respond(gateway)).json()

    assert (await read(gateway, made["id"])).status_code == 404
    await gateway.parts.responses.beat()

    assert await gateway.parts.responses.store.erase(gateway.tenant.id) == 0


async def test_a_response_whose_gateway_died_is_told_as_failed(gateway: Gateway) -> None:
    made = (await respond(gateway, store=False)).json()
    service = gateway.parts.responses
    await service.store.add(
        principal_of(gateway), {**made, "status": "in_progress", "background": True}, [], end_user=None
    )
    now = service.store._clock

    await service.beat()
    assert (await read(gateway, made["id"])).json()["status"] == "in_progress"
    service.store._clock = lambda: now() + timedelta(seconds=31)
    await service.beat()

    failed = (await read(gateway, made["id"])).json()
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")


async def test_an_end_users_responses_can_be_erased(gateway: Gateway) -> None:
    mine = (await respond(gateway, safety_identifier="u1")).json()
    others = (await respond(gateway, safety_identifier="u2")).json()

    assert await gateway.parts.responses.store.erase(gateway.tenant.id, end_user="u1") == 1

    assert (await read(gateway, mine["id"])).status_code == 404
    assert (await read(gateway, others["id"])).status_code == 200
