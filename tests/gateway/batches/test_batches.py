"""/v1/batches over HTTP: JSONL in, JSONL out, at batch terms; cancelled, expired, refused, taken over."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from billing.tables import ApiKey
from engine.errors import QueueFull, RequestFailed
from engine.types import EngineRequest, Priority
from gateway.batches.store import BatchStore
from gateway.batches.worker import BatchWorker
from gateway.tables.batches import Batch, BatchStatus
from tests.gateway.batches.victim import STEPS
from tests.gateway.conftest import Gateway, StartGateway, Tenant
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.files.test_files import upload
from tests.gateway.surface import roomy_model

CHAT = "/v1/chat/completions"


def line(custom_id: str, content: str = "hi", *, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in lines)


async def create(
    gateway: Gateway, lines: list[dict[str, Any]] | bytes, *, endpoint: str = CHAT, **fields: Any
) -> httpx.Response:
    content = lines if isinstance(lines, bytes) else jsonl(lines)
    file = (await upload(gateway, content)).json()
    body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h", **fields}
    return await gateway.post("/v1/batches", body)


async def read(gateway: Gateway, batch_id: str, tenant: Tenant | None = None) -> httpx.Response:
    return await gateway.client.get(f"/v1/batches/{batch_id}", headers=(tenant or gateway.tenant).headers)


async def until(gateway: Gateway, batch_id: str, *statuses: str) -> dict[str, Any]:
    for _ in range(6000):
        batch = (await read(gateway, batch_id)).json()
        if batch["status"] in statuses:
            return dict(batch)
        await asyncio.sleep(0.01)
    raise AssertionError(batch)


async def until_true(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about within a minute")


async def output(gateway: Gateway, file_id: str) -> dict[str, Any]:
    """The file's lines by custom_id."""
    content = (await gateway.client.get(f"/v1/files/{file_id}/content", headers=gateway.tenant.headers)).content
    decoded = [msgspec.json.decode(each) for each in content.splitlines()]
    by_id = {each["custom_id"]: each for each in decoded}
    assert len(by_id) == len(decoded)
    return by_id


async def billed(gateway: Gateway) -> list[int]:
    """Output tokens in the books, corrections included, one number a line."""
    tokens: dict[str, int] = {}
    for row in await gateway.ledger():
        tokens[row.request_id] = tokens.get(row.request_id, 0) + row.batch_output_tokens
    return list(tokens.values())


def failing(word: str, **script: Any) -> ScriptedEngine:
    """An engine that fails on prompts holding `word`."""

    def choose(request: EngineRequest) -> Script:
        prompt = roomy_model().decode(request.prompt_token_ids)
        return Script(**script) if word in prompt else Script()

    return ScriptedEngine(choose)


async def test_every_line_is_answered_at_batch_price_and_priority(gateway: Gateway) -> None:
    made = (await create(gateway, [line(f"q{n}", f"question {n}") for n in range(20)], metadata={"k": "v"})).json()

    assert (made["object"], made["status"], made["metadata"]) == ("batch", "validating", {"k": "v"})
    done = await until(gateway, made["id"], "completed")
    assert done["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert done["error_file_id"] is None
    answers = await output(gateway, done["output_file_id"])
    assert set(answers) == {f"q{n}" for n in range(20)}
    assert answers["q7"]["error"] is None
    assert answers["q7"]["response"]["status_code"] == 200
    body = answers["q7"]["response"]["body"]
    assert (body["object"], body["choices"][0]["message"]["content"]) == ("chat.completion", "Hello world")
    rows = await gateway.ledger()
    assert len(rows) == 20
    assert {row.batch_output_tokens for row in rows} == {2}
    assert {row.output_tokens for row in rows} == {0}
    assert {request.priority for request in gateway.engine.requests} == {Priority.BATCH}


async def test_other_endpoints_run_too(gateway: Gateway) -> None:
    texts = [{"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "once"}}]
    vectors = [
        {
            "custom_id": "e",
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": "all-MiniLM-L6-v2", "input": "a word"},
        }
    ]
    responses = [{"custom_id": "r", "method": "POST", "url": "/v1/responses", "body": {"model": "m", "input": "hi"}}]
    kinds = {}
    for lines in (texts, vectors, responses):
        made = (await create(gateway, lines, endpoint=lines[0]["url"])).json()
        done = await until(gateway, made["id"], "completed")
        [answer] = (await output(gateway, done["output_file_id"])).values()
        kinds[answer["custom_id"]] = answer["response"]["body"]["object"]

    assert kinds == {"c": "text_completion", "e": "list", "r": "response"}


async def test_lines_that_fail_go_to_the_error_file_alone(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(failing("poison", fail_at=0, error=RequestFailed("inside")))

    lines = [line("good"), line("bad", "poison"), line("wrong", max_tokens=-1), line("streamed", stream=True)]
    made = (await create(gateway, lines)).json()
    done = await until(gateway, made["id"], "completed")

    assert done["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
    assert set(await output(gateway, done["output_file_id"])) == {"good"}
    errors = await output(gateway, done["error_file_id"])
    assert errors["bad"]["response"]["status_code"] == 500
    assert "inside" not in errors["bad"]["response"]["body"]["error"]["message"]
    assert errors["wrong"]["response"]["body"]["error"]["param"] == "max_tokens"
    assert errors["streamed"]["response"]["body"]["error"]["param"] == "stream"


async def test_a_full_queue_is_waited_for(start_gateway: StartGateway) -> None:
    tries = 0

    def choose(_: EngineRequest) -> Script:
        nonlocal tries
        tries += 1
        return Script(fail_at=0, error=QueueFull("full", retry_after_s=0.01)) if tries <= 2 else Script()

    gateway = await start_gateway(ScriptedEngine(choose))

    made = (await create(gateway, [line("q")])).json()

    assert (await until(gateway, made["id"], "completed"))["request_counts"]["completed"] == 1
    assert await billed(gateway) == [2]


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"not json\n", "invalid_json_line", 1),
        (jsonl([line("a"), line("a")]), "duplicate_custom_id", 2),
        (jsonl([line("a", url="/v1/completions")]), "invalid_url", 1),
        (jsonl([line("a"), {"custom_id": "b", "method": "GET", "url": CHAT, "body": {}}]), "invalid_request", 2),
        (b"[" * 300 + b"\n", "invalid_json_line", 1),
    ],
)
async def test_a_bad_line_fails_the_batch_before_any_runs(
    gateway: Gateway, content: bytes, code: str, number: int | None
) -> None:
    made = (await create(gateway, content)).json()

    failed = await until(gateway, made["id"], "failed")

    [error] = failed["errors"]["data"]
    assert (error["code"], error["line"]) == (code, number)
    assert failed["failed_at"] is not None
    assert gateway.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-nope"}, "input_file_id"),
    ],
)
async def test_a_bad_batch_is_refused_by_name(gateway: Gateway, fields: dict[str, Any], param: str) -> None:
    response = await create(gateway, [line("a")], **fields)

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_file_of_another_purpose_is_no_input(gateway: Gateway) -> None:
    file = (await upload(gateway, jsonl([line("a")]), purpose="user_data")).json()

    response = await gateway.post(
        "/v1/batches", {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    )

    assert response.json()["error"]["param"] == "input_file_id"


async def test_cancelling_keeps_what_was_answered_and_asks_no_more(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(lambda request: Script(steps=("a", "b"), gate_at=1))
    gateway = await start_gateway(engine, batch_concurrency=2)
    made = (await create(gateway, [line(f"q{n}", f"{n}") for n in range(6)])).json()
    await until_true(lambda: len(engine.requests) >= 2)
    engine.gate.clear()
    await until(gateway, made["id"], "in_progress")

    cancelling = await gateway.post(f"/v1/batches/{made['id']}/cancel", {})

    assert cancelling.json()["status"] in ("cancelling", "cancelled")
    done = await until(gateway, made["id"], "cancelled")
    counts = done["request_counts"]
    assert counts["completed"] + counts["failed"] < 6
    assert engine.running == set()
    if counts["completed"]:
        assert len(await output(gateway, done["output_file_id"])) == counts["completed"]
    assert (await gateway.post(f"/v1/batches/{made['id']}/cancel", {})).status_code == 409


async def test_an_expired_batch_says_so_line_by_line(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(lambda request: Script(steps=("a",), gate_at=0))
    gateway = await start_gateway(engine, batch_concurrency=1)
    engine.gate.clear()
    store = gateway.parts.batches
    made = (await create(gateway, [line("a"), line("b")])).json()
    await until(gateway, made["id"], "in_progress")
    now = store._clock

    store._clock = lambda: now() + timedelta(hours=25)

    done = await until(gateway, made["id"], "expired")
    assert done["expired_at"] is not None
    errors = await output(gateway, done["error_file_id"])
    assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}


async def test_a_batch_stops_when_its_key_is_revoked(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(lambda request: Script(steps=("a",), gate_at=0))
    gateway = await start_gateway(engine, batch_concurrency=1)
    engine.gate.clear()
    made = (await create(gateway, [line("a"), line("b")])).json()
    await until(gateway, made["id"], "in_progress")

    async with gateway.parts.billing.db.begin() as session:
        revoked = sa.update(ApiKey).where(ApiKey.id == gateway.tenant.key_id)
        await session.execute(revoked.values(revoked_at=gateway.parts.batches._clock()))
    engine.gate.set()

    for _ in range(6000):
        async with gateway.parts.billing.db.read() as session:
            status = await session.scalar(sa.select(Batch.status).where(Batch.id == made["id"]))
        if status is BatchStatus.CANCELLED:
            break
        await asyncio.sleep(0.02)
    assert status is BatchStatus.CANCELLED


async def test_another_tenants_batch_does_not_exist(gateway: Gateway) -> None:
    made = (await create(gateway, [line("a")])).json()
    other = await gateway.add_tenant("other")

    assert (await read(gateway, made["id"], other)).status_code == 404
    assert (await gateway.post(f"/v1/batches/{made['id']}/cancel", {}, other)).status_code == 404
    listed = await gateway.client.get("/v1/batches", headers=other.headers)
    assert listed.json()["data"] == []
    mine = await gateway.client.get("/v1/batches", headers=gateway.tenant.headers)
    assert [batch["id"] for batch in mine.json()["data"]] == [made["id"]]


# -- two gateways


def second_worker(gateway: Gateway, **options: Any) -> BatchWorker:
    """Another gateway's worker over the same database, with its own lease."""
    store = BatchStore(gateway.parts.billing.db, owner="gw_second", **options)
    return BatchWorker(store, gateway.parts.files, gateway.parts.batch_worker._runner)


async def test_one_batch_is_worked_on_by_one_gateway_at_a_time(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(lambda request: Script(steps=("a",), gate_at=0))
    gateway = await start_gateway(engine)
    engine.gate.clear()
    made = (await create(gateway, [line(f"q{n}", f"{n}") for n in range(5)])).json()
    await until(gateway, made["id"], "in_progress")

    assert await second_worker(gateway).work_once() is False

    engine.gate.set()
    assert (await until(gateway, made["id"], "completed"))["request_counts"]["completed"] == 5
    assert len(engine.requests) == 5


async def test_a_gateway_that_lost_its_lease_writes_no_more(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(lambda request: Script(steps=("a",), gate_at=0))
    gateway = await start_gateway(engine)
    engine.gate.clear()
    made = (await create(gateway, [line(f"q{n}", f"{n}") for n in range(5)])).json()
    await until(gateway, made["id"], "in_progress")
    now = gateway.parts.batches._clock
    thief = second_worker(gateway, clock=lambda: now() + timedelta(seconds=60))

    taking = asyncio.create_task(thief.work_once())  # as if the first had been silent for a minute
    await asyncio.sleep(0.1)
    engine.gate.set()
    await taking

    done = await until(gateway, made["id"], "completed")
    assert done["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
    answers = await output(gateway, done["output_file_id"])
    assert len(answers) == 5
    assert await billed(gateway) == [1] * 5


async def test_a_stopped_gateways_lines_are_answered_and_billed_once_by_the_next(start_gateway: StartGateway) -> None:
    engine = ScriptedEngine(lambda request: Script(steps=("a", "b", "c"), gate_at=1))
    gateway = await start_gateway(engine, batch_concurrency=3)
    engine.gate.clear()
    made = (await create(gateway, [line(f"q{n}", f"{n}") for n in range(7)])).json()
    await until(gateway, made["id"], "in_progress")
    await until_true(lambda: len(engine.running) == 3)

    await gateway.parts.batch_worker.stop()  # three lines are half done
    assert engine.running == set()
    engine.gate.set()
    assert await second_worker(gateway).work_once() is True

    done = await until(gateway, made["id"], "completed")
    assert done["request_counts"] == {"total": 7, "completed": 7, "failed": 0}
    assert await billed(gateway) == [3] * 7


async def test_a_killed_gateways_batch_is_answered_and_billed_once_by_the_next(
    start_gateway: StartGateway, redis_url: str
) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(steps=STEPS)))
    await gateway.parts.batch_worker.stop()  # the process below is to take the batch
    made = (await create(gateway, [line(f"q{n}", f"{n}") for n in range(30)])).json()
    arguments = [
        sys.executable,
        "-m",
        "tests.gateway.batches.victim",
        gateway.parts.settings.data_dir,
        redis_url,
        "0.03",
    ]
    victim = await asyncio.create_subprocess_exec(*arguments, cwd=Path(__file__).parents[3])

    for _ in range(6000):
        counts = (await read(gateway, made["id"])).json()["request_counts"]
        if counts["completed"] >= 8:
            break
        await asyncio.sleep(0.01)
    victim.kill()  # SIGKILL: four lines are half done, their holds stand, nothing is settled
    await victim.wait()
    assert 8 <= counts["completed"] < 30
    now = gateway.parts.batches._clock
    next_ = second_worker(gateway, clock=lambda: now() + timedelta(seconds=60))  # its lease has run out
    assert await next_.work_once() is True

    done = await until(gateway, made["id"], "completed")
    assert done["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    assert set(await output(gateway, done["output_file_id"])) == {f"q{n}" for n in range(30)}
    assert await billed(gateway) == [len(STEPS)] * 30
