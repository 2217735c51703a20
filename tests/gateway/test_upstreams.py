"""Routes over our engine and OpenAI-compatible upstreams: fallbacks, retries, breaker, usage, secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from billing import config
from billing.tables import EntryStatus
from gateway.breaker import FAILURES_TO_OPEN
from tests.gateway.conftest import OPERATOR, Gateway, StartGateway, frames, until
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.openai_stub import OpenAIStub
from tests.gateway.raw_asgi import RawExchange

AddUpstream = Callable[..., Awaitable[None]]
USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 90}}


@pytest.fixture
async def add_upstream() -> AsyncIterator[AddUpstream]:
    """Serves a stub and makes it an upstream of a gateway, its model priced."""
    async with AsyncExitStack() as stack:

        async def add(
            gateway: Gateway, name: str, stub: OpenAIStub, model: str, *, factor: int = 1, **fields: Any
        ) -> None:
            url = await stack.enter_async_context(stub.serving())
            body = {"base_url": url, "models": {model: "remote-name"}, **fields}
            await set_config(gateway, "upstream", name, body)
            await gateway.set_price(model, factor=factor)
            await until(lambda: model in gateway.parts.router.table)

        yield add


async def set_config(gateway: Gateway, kind: str, name: str, body: dict[str, Any]) -> None:
    async with gateway.parts.billing.db.begin() as session:
        await config.set_item(session, OPERATOR, kind, name, body)


async def set_route(gateway: Gateway, name: str, *targets: str, **fields: Any) -> None:
    """Targets as `upstream/model`."""
    specs = [dict(zip(("upstream", "model"), target.split("/"), strict=True)) for target in targets]
    await set_config(gateway, "route", name, {"targets": specs, "retries": 0, **fields})
    await until(lambda: name in gateway.parts.router.table)


async def test_an_upstream_answers_under_its_name_and_is_billed_by_its_usage(
    gateway: Gateway, add_upstream: AddUpstream
) -> None:
    stub = OpenAIStub(usage=USAGE)
    await add_upstream(gateway, "far", stub, "big")

    answer = await gateway.chat("hi", model="big", temperature=0.5, truncation="auto", user="u")

    assert answer.json()["choices"][0]["message"]["content"] == "far away"
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 90
    [body] = stub.bodies
    assert (body["model"], body["temperature"], body["stream"]) == ("remote-name", 0.5, False)
    assert "truncation" not in body
    [row] = await gateway.ledger()
    assert (row.model, row.upstream) == ("big", "far")
    assert (row.input_tokens, row.cached_input_tokens, row.output_tokens) == (10, 90, 7)
    # 10 fresh at $1, 90 cached at $0.1, 7 out at $2 a million tokens
    assert row.amount_nano_usd == 10 * 1000 + 90 * 100 + 7 * 2000


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_is_asked_for_in_streams_and_streams_cost_the_same(
    gateway: Gateway, add_upstream: AddUpstream, stream: bool
) -> None:
    stub = OpenAIStub(usage=USAGE)
    await add_upstream(gateway, "far", stub, "big")

    await gateway.chat("hi", model="big", stream=stream)

    assert stub.bodies[0].get("stream_options") == ({"include_usage": True} if stream else None)
    [row] = await gateway.ledger()
    assert row.amount_nano_usd == 10 * 1000 + 90 * 100 + 7 * 2000


async def test_a_budget_cuts_an_upstreams_plain_answer_too(gateway: Gateway, add_upstream: AddUpstream) -> None:
    stub = OpenAIStub(words=("x" * 100,) * 6, usage=None)
    await add_upstream(gateway, "far", stub, "big")
    # 300 tokens of output are paid for; the test's tokenizer has one a byte.
    prompt = (await gateway.post("/tokenize", {"model": "m", "messages": [{"role": "user", "content": "p"}]})).json()
    await gateway.set_limit(gateway.tenant, "budget_day", prompt["count"] * 1000 + 300 * 2000 + 1)

    answer = await gateway.chat("p", model="big", max_tokens=900)

    choice = answer.json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("x" * 300, "length")
    assert answer.json()["weir"]["truncated_reason"] == "budget"
    assert stub.bodies[0]["stream"] is True
    [row] = await gateway.ledger()
    assert (row.status, row.output_tokens) == (EntryStatus.BUDGET_CUT, 300)


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_that_does_not_come_is_counted_and_flagged(
    gateway: Gateway, add_upstream: AddUpstream, stream: bool
) -> None:
    await add_upstream(gateway, "far", OpenAIStub(usage=None), "big")

    answer = await gateway.chat("hi", model="big", stream=stream)

    assert '"estimated_usage":true' in answer.text
    [row] = await gateway.ledger()
    assert row.output_tokens == len("far away")  # the test's tokenizer has one token a byte
    # The words and who says them: the local model's own template is none of the upstream's.
    assert row.input_tokens == len("user\nhi\n\n")
    assert row.note == "usage is estimated: the upstream sent none"


@pytest.mark.parametrize("answer_id", ["chatcmpl-1", None, ""])
async def test_an_upstreams_ids_are_never_ours(
    gateway: Gateway, add_upstream: AddUpstream, answer_id: str | None
) -> None:
    await add_upstream(gateway, "far", OpenAIStub(usage=USAGE, answer_id=answer_id), "big")

    ids = {(await gateway.chat(f"hi {n}", model="big")).json()["id"] for n in range(3)}

    assert len(ids) == 3
    assert len(await gateway.ledger()) == 3


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_failing_target_falls_back_before_the_first_token(
    gateway: Gateway, add_upstream: AddUpstream, status: int
) -> None:
    stub = OpenAIStub(statuses=(status,) * 9)
    await add_upstream(gateway, "far", stub, "big")
    await set_route(gateway, "smart", "far/big", "local/m")

    answer = await gateway.chat("hi", model="smart")

    assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
    assert answer.json()["model"] == "smart"
    assert answer.json()["weir"] == {"served_by": "local/m"}
    [row] = await gateway.ledger()
    assert (row.upstream, row.model, row.route) == ("local", "m", "smart")


async def test_a_refusal_of_the_callers_input_is_not_tried_elsewhere(
    gateway: Gateway, add_upstream: AddUpstream
) -> None:
    stub = OpenAIStub(statuses=(400,))
    await add_upstream(gateway, "far", stub, "big")
    await set_route(gateway, "smart", "far/big", "local/m")

    answer = await gateway.chat("hi", model="smart")

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "stubbed"
    assert gateway.engine.requests == []


async def test_retries_stay_at_the_target(gateway: Gateway, add_upstream: AddUpstream) -> None:
    stub = OpenAIStub(statuses=(503, 503), usage=USAGE)
    await add_upstream(gateway, "far", stub, "big")
    await set_route(gateway, "again", "far/big", retries=2)

    answer = await gateway.chat("hi", model="again")

    assert answer.status_code == 200
    assert len(stub.requests) == 3
    assert len(await gateway.ledger()) == 1


async def test_after_the_first_token_nothing_is_tried_again(gateway: Gateway, add_upstream: AddUpstream) -> None:
    stub = OpenAIStub(break_after=1)
    await add_upstream(gateway, "far", stub, "big")
    await set_route(gateway, "smart", "far/big", "local/m")

    answer = await gateway.chat("hi", model="smart", stream=True)

    chunks = frames(answer)
    assert "error" in chunks[-1]
    assert gateway.engine.requests == []
    [row] = await gateway.ledger()
    assert (row.status, row.output_tokens) == (EntryStatus.FAILED, len("far"))


async def test_a_full_queue_falls_back(start_gateway: StartGateway, add_upstream: AddUpstream) -> None:
    from engine.errors import QueueFull

    gateway = await start_gateway(ScriptedEngine(Script(fail_at=0, error=QueueFull("full", retry_after_s=3))))
    await add_upstream(gateway, "far", OpenAIStub(usage=USAGE), "big")
    await set_route(gateway, "smart", "local/m", "far/big")

    assert (await gateway.chat("hi", model="smart")).json()["weir"] == {"served_by": "far/big"}
    alone = await gateway.chat("hi", model="m")
    assert alone.status_code == 503
    assert alone.json()["error"]["code"] == "server_is_overloaded"


async def test_the_breaker_opens_and_then_nobody_asks(gateway: Gateway, add_upstream: AddUpstream) -> None:
    stub = OpenAIStub(statuses=(500,) * 99)
    await add_upstream(gateway, "far", stub, "big")
    await set_route(gateway, "smart", "far/big", "local/m")

    for number in range(FAILURES_TO_OPEN + 3):
        assert (await gateway.chat(f"hi {number}", model="smart")).status_code == 200

    assert len(stub.requests) == FAILURES_TO_OPEN
    down = await gateway.chat("hi", model="big")
    assert down.status_code == 503
    assert int(down.headers["retry-after"]) >= 1


async def test_an_upstream_that_is_away_is_503_without_its_address(gateway: Gateway) -> None:
    await gateway.set_price("gone")
    await set_config(gateway, "upstream", "far", {"base_url": "http://127.0.0.1:9/v1", "models": {"gone": ""}})
    await until(lambda: "gone" in gateway.parts.router.table)

    answer = await gateway.chat("hi", model="gone")

    assert answer.status_code == 503
    assert "127.0.0.1" not in answer.text


async def test_refused_credentials_are_the_operators_business(gateway: Gateway, add_upstream: AddUpstream) -> None:
    await add_upstream(gateway, "far", OpenAIStub(statuses=(401,) * 9), "big")

    answer = await gateway.chat("hi", model="big")

    assert answer.status_code == 503
    assert "credentials" in answer.json()["error"]["message"]


async def test_the_upstreams_key_is_sent_and_never_shown(
    gateway: Gateway, add_upstream: AddUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    stub = OpenAIStub(statuses=(500, 500))
    encrypted = gateway.parts.billing.secret.encrypt("sk-upstream-secret").decode()
    await add_upstream(gateway, "far", stub, "big", api_key_encrypted=encrypted)

    answer = await gateway.chat("hi", model="big")

    headers, _ = stub.requests[0]
    assert headers["authorization"] == "Bearer sk-upstream-secret"
    assert gateway.tenant.key not in str(stub.requests)
    assert "sk-upstream-secret" not in answer.text + caplog.text + repr(gateway.parts.route_config.upstreams)


async def test_leaving_closes_the_upstreams_connection(gateway: Gateway, add_upstream: AddUpstream) -> None:
    stub = OpenAIStub()
    stub.hang = True
    await add_upstream(gateway, "far", stub, "big")
    body = {"model": "big", "messages": [{"role": "user", "content": "hi"}]}
    async with RawExchange(gateway, "POST", "/v1/chat/completions", body) as raw:
        await until(lambda: bool(stub.requests))
        raw.leave()
        await raw.finished()

    [row] = await gateway.ledger()
    assert (row.status, row.amount_nano_usd) == (EntryStatus.CLIENT_DISCONNECT, 0)


async def test_leaving_once_an_upstream_has_read_the_prompt_costs_the_prompt_and_what_was_made(
    gateway: Gateway, add_upstream: AddUpstream
) -> None:
    for made, words in ((0, ("", "never")), (1, ("", "o", "never"))):  # the first frame names the role alone
        stub = OpenAIStub(words)
        stub.hang_before = len(words) - 1
        await add_upstream(gateway, f"far{made}", stub, f"big{made}")
        content = f"how far is it, asked time {made}?"
        body = {"model": f"big{made}", "messages": [{"role": "user", "content": content}], "stream": True}
        async with RawExchange(gateway, "POST", "/v1/chat/completions", body) as raw:
            await raw.start()
            for _ in range(1 + made):
                await raw.chunk()
            raw.leave()
            await raw.finished()

        row = (await gateway.ledger())[-1]
        assert row.status is EntryStatus.CLIENT_DISCONNECT
        assert (row.input_tokens, row.output_tokens) == (len(content) + len("user\n\n\n"), made)
        assert row.amount_nano_usd == row.input_tokens * 1000 + made * 2000


async def test_the_cheapest_model_of_a_route_goes_first(gateway: Gateway, add_upstream: AddUpstream) -> None:
    await add_upstream(gateway, "far", OpenAIStub(usage=USAGE), "big", factor=10)
    await set_route(gateway, "auto", "far/big", "local/m", strategy="cheapest")
    await set_route(gateway, "listed", "far/big", "local/m")

    assert (await gateway.chat("a", model="auto")).json()["weir"] == {"served_by": "local/m"}
    assert (await gateway.chat("b", model="listed")).json()["weir"] == {"served_by": "far/big"}


async def test_a_callers_wish_moves_it_to_the_cheaper_model(gateway: Gateway, add_upstream: AddUpstream) -> None:
    await add_upstream(gateway, "far", OpenAIStub(usage=USAGE), "big", factor=10)
    await set_route(gateway, "listed", "far/big", "local/m")
    body = {"model": "listed", "messages": [{"role": "user", "content": "hi"}]}

    answer = await gateway.post("/v1/chat/completions", body, x_weir_prefer="cheaper")

    assert answer.json()["weir"] == {"served_by": "local/m"}
    [row] = await gateway.ledger()
    assert (row.model, row.route) == ("m", "listed")


async def test_a_soft_budget_moves_its_tenant_to_the_cheaper_model(gateway: Gateway, add_upstream: AddUpstream) -> None:
    await add_upstream(gateway, "far", OpenAIStub(usage=USAGE), "big", factor=10)
    await set_route(gateway, "listed", "far/big", "local/m")
    other = await gateway.add_tenant("globex")
    await gateway.set_limit(gateway.tenant, "budget_month", None, soft=1)

    first = await gateway.chat("a", model="listed")
    await gateway.parts.background.drain(60)
    second = await gateway.chat("b", model="listed")
    others = await gateway.chat("c", model="listed", tenant=other)

    assert first.json()["weir"] == {"served_by": "far/big"}
    assert second.json()["weir"] == {"served_by": "local/m"}
    assert others.json()["weir"] == {"served_by": "far/big"}


async def test_a_changed_route_is_in_force_without_a_restart(gateway: Gateway, add_upstream: AddUpstream) -> None:
    await add_upstream(gateway, "far", OpenAIStub(usage=USAGE), "big")
    await set_route(gateway, "smart", "far/big")
    await set_config(gateway, "route", "smart", {"targets": [{"upstream": "local", "model": "m"}]})
    await until(lambda: gateway.parts.router.table.get("smart").targets[0].upstream.name == "local")  # type: ignore[union-attr]

    answer = await gateway.chat("hi", model="smart")

    assert answer.json()["weir"] == {"served_by": "local/m"}


async def test_a_bad_route_is_left_out_and_harms_no_other(gateway: Gateway) -> None:
    await set_config(gateway, "route", "broken", {"targets": [{"upstream": "nobody", "model": "x"}]})
    await set_config(gateway, "route", "odd", {"surprise": 1})
    await set_route(gateway, "good", "local/m")

    assert "broken" not in gateway.parts.router.table
    assert (await gateway.chat("hi", model="good")).status_code == 200
    assert (await gateway.chat("hi", model="broken")).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_a_completions_echo_and_logprobs_come_from_an_upstream_as_from_our_engine(
    gateway: Gateway, add_upstream: AddUpstream, stream: bool
) -> None:
    stub = OpenAIStub(usage=USAGE)
    await add_upstream(gateway, "far", stub, "big")

    answer = await gateway.complete("so", model="big", logprobs=2, stream=stream)
    echoed = await gateway.complete("so", model="big", echo=True, stream=stream)
    nothing = await gateway.complete("so", model="big", echo=True, max_tokens=0, stream=stream)
    refused = await gateway.complete("so", model="big", echo=True, logprobs=1, stream=stream)

    def choices(response: httpx.Response) -> list[dict[str, Any]]:
        chunks = frames(response) if stream else [response.json()]
        return [choice for chunk in chunks for choice in chunk["choices"]]

    def text(response: httpx.Response) -> str:
        return "".join(choice["text"] for choice in choices(response))

    lists = [choice["logprobs"] for choice in choices(answer) if choice["logprobs"]]
    assert [token for each in lists for token in each["tokens"]] == ["far", " away"]
    assert [logprob for each in lists for logprob in each["token_logprobs"]] == [-0.5, -0.5]
    assert [offset for each in lists for offset in each["text_offset"]] == [0, 3]
    assert [set(top) for each in lists for top in each["top_logprobs"]] == [{"far", "other"}, {" away", "other"}]
    assert (text(answer), text(echoed), text(nothing)) == ("far away", "sofar away", "so")
    assert all("echo" not in body for body in stub.bodies)
    assert len(stub.bodies) == 2
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "echo")
