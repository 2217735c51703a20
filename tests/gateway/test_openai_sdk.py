"""The official openai client against a gateway on a real socket: what it parses, raises, retries and abandons."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest
import uvicorn
from openai import AsyncOpenAI

from billing.tables import EntryStatus
from engine.errors import RequestFailed
from tests.gateway.conftest import Gateway, StartGateway, until
from tests.gateway.fakes import Script, ScriptedEngine
from tests.gateway.sockets import InLoopServer

Connect = Callable[..., Awaitable[AsyncOpenAI]]
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Serves a running gateway on a free port and gives a client for it."""
    async with AsyncExitStack() as stack:

        async def client(gateway: Gateway, **options: Any) -> AsyncOpenAI:
            config = uvicorn.Config(gateway.app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
            server = InLoopServer(config)
            port = await server.listen()
            stack.push_async_callback(server.close)
            options = {"api_key": gateway.tenant.key, "max_retries": 0, **options}
            made = AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", **options)
            stack.push_async_callback(made.close)
            return made

        yield client


async def test_chat_completions_embeddings_and_models_parse(gateway: Gateway, connect: Connect) -> None:
    client = await connect(gateway)

    chat = await client.chat.completions.create(model="m", messages=MESSAGES, n=2, logprobs=True, top_logprobs=1)
    text = await client.completions.create(model="m", prompt="once", echo=True)
    embedded = await client.embeddings.create(model="all-MiniLM-L6-v2", input=["a b", "c"])
    models = [model.id async for model in client.models.list()]
    one = await client.models.retrieve("m")

    assert [choice.message.content for choice in chat.choices] == ["Hello world"] * 2
    assert chat.choices[0].logprobs is not None
    assert chat.usage is not None
    assert chat.usage.prompt_tokens_details is not None
    assert text.choices[0].text == "onceHello world"
    assert len(embedded.data[0].embedding) == 64
    assert (models, one.id) == (["m", "all-MiniLM-L6-v2"], "m")
    assert chat._request_id is not None
    assert chat._request_id.startswith("req_")


async def test_a_stream_joins_and_ends_with_usage(gateway: Gateway, connect: Connect) -> None:
    client = await connect(gateway)

    stream = await client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


async def test_the_stream_helper_gathers_every_choice(gateway: Gateway, connect: Connect) -> None:
    client = await connect(gateway)

    async with client.chat.completions.stream(
        model="m", messages=MESSAGES, n=3, stream_options={"include_usage": True}
    ) as stream:
        events = [event.type async for event in stream]
        final = await stream.get_final_completion()

    assert "content.done" in events
    assert [choice.message.role for choice in final.choices] == ["assistant"] * 3
    assert [choice.finish_reason for choice in final.choices] == ["stop"] * 3
    assert final.usage is not None
    assert final.usage.completion_tokens == 6


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "nope"}, openai.NotFoundError, "model_not_found"),
        ({"messages": []}, openai.BadRequestError, "empty_array"),
        ({"temperature": 9}, openai.BadRequestError, "decimal_above_max_value"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, openai.BadRequestError, "context_length_exceeded"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_are_the_sdks_typed_errors(
    gateway: Gateway, connect: Connect, fields: dict[str, Any], error: type[openai.APIStatusError], code: str,
    stream: bool,
) -> None:  # fmt: skip
    client = await connect(gateway)

    with pytest.raises(error) as caught:
        await client.chat.completions.create(**{"model": "m", "messages": MESSAGES, "stream": stream, **fields})

    assert caught.value.code == code
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id is not None


async def test_a_wrong_key_is_an_authentication_error(gateway: Gateway, connect: Connect) -> None:
    client = await connect(gateway, api_key="sk-weir-wrong")

    with pytest.raises(openai.AuthenticationError) as caught:
        await client.chat.completions.create(model="m", messages=MESSAGES)

    assert caught.value.code == "invalid_api_key"
    assert "sk-weir-wrong" not in str(caught.value)


async def test_an_error_inside_a_stream_is_raised_with_its_message(
    start_gateway: StartGateway, connect: Connect
) -> None:
    gateway = await start_gateway(ScriptedEngine(Script(fail_at=1, error=RequestFailed("inside"))))
    client = await connect(gateway)
    stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)

    with pytest.raises(openai.APIError, match="The server had an error"):
        async for _ in stream:
            pass


async def test_the_sdk_waits_as_long_as_the_limit_says_and_then_succeeds(gateway: Gateway, connect: Connect) -> None:
    await gateway.set_limit(gateway.tenant, "rpm", 120)  # one every half second once the burst is used up
    client = await connect(gateway, max_retries=3)
    for number in range(120):
        await gateway.parts.billing.admission.admit(await _ticket(gateway, number))

    begun = asyncio.get_running_loop().time()
    answer = await client.chat.completions.create(model="m", messages=MESSAGES)

    assert answer.choices[0].message.content == "Hello world"
    assert asyncio.get_running_loop().time() - begun > 0.2


async def _ticket(gateway: Gateway, number: int) -> Any:
    billing = gateway.parts.billing
    principal = await billing.auth.authenticate(gateway.tenant.key)
    return await billing.admission.open(principal, "m", f"req_burst{number}")


async def test_a_spent_budget_is_not_retried(gateway: Gateway, connect: Connect) -> None:
    await gateway.set_limit(gateway.tenant, "budget_day", 1)
    client = await connect(gateway, max_retries=5)

    with pytest.raises(openai.RateLimitError) as caught:
        async with asyncio.timeout(60):
            await client.chat.completions.create(model="m", messages=MESSAGES)

    assert caught.value.code == "insufficient_quota"
    assert gateway.engine.requests == []


async def test_leaving_a_stream_early_frees_the_engine(start_gateway: StartGateway, connect: Connect) -> None:
    engine = ScriptedEngine(Script(steps=tuple("abcdefgh"), gate_at=3))
    engine.gate.clear()
    gateway = await start_gateway(engine)
    client = await connect(gateway)

    stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content == "b":
            break
    await stream.close()
    await until(lambda: bool(engine.aborted))

    [row] = await gateway.ledger()
    assert row.status is EntryStatus.CLIENT_DISCONNECT
    assert row.output_tokens == 3


async def test_a_client_timeout_on_a_plain_call_frees_the_engine(start_gateway: StartGateway, connect: Connect) -> None:
    engine = ScriptedEngine(Script(steps=tuple("abc"), gate_at=1))
    engine.gate.clear()
    gateway = await start_gateway(engine)
    client = await connect(gateway, timeout=0.3)

    with pytest.raises(openai.APITimeoutError):
        await client.chat.completions.create(model="m", messages=MESSAGES)
    await until(lambda: bool(engine.aborted))

    [row] = await gateway.ledger()
    assert row.status is EntryStatus.CLIENT_DISCONNECT


async def test_a_thousand_deltas_arrive_whole_and_in_order(start_gateway: StartGateway, connect: Connect) -> None:
    def script(request: Any) -> Script:
        return Script(steps=tuple(f"{number} " for number in range(900)))

    gateway = await start_gateway(ScriptedEngine(script), cache_enabled=False)
    client = await connect(gateway)

    async def one() -> str:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True, max_tokens=900)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    texts = await asyncio.gather(*(one() for _ in range(8)))

    assert set(texts) == {"".join(f"{number} " for number in range(900))}
