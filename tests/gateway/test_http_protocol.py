"""A request's head is bounded, on real sockets and in memory."""

from __future__ import annotations

import msgspec

from gateway.errors import MAX_HEAD_BYTES
from tests.gateway.conftest import Gateway
from tests.gateway.sockets import connected

PING = b"GET /ping HTTP/1.1\r\nhost: weir\r\n"


async def test_a_head_that_never_ends_is_431_and_its_connection_closed(gateway: Gateway) -> None:
    async with connected(gateway) as connection:
        await connection.send(PING + b"\r\n" + PING + b"x-endless: ")
        served = await connection.answer()  # so the endless head has begun
        await connection.send(b"a" * (MAX_HEAD_BYTES + 1))
        answer = await connection.answer()
        closed = await connection.ended()

    assert (served.status, answer.status) == (200, 431)
    assert str(MAX_HEAD_BYTES) in msgspec.json.decode(answer.body)["error"]["message"]
    assert closed


async def test_a_whole_head_over_the_bound_is_431_and_one_under_it_is_served(gateway: Gateway) -> None:
    statuses = []
    for size in (MAX_HEAD_BYTES, MAX_HEAD_BYTES - 1024):
        async with connected(gateway) as connection:
            await connection.send(PING + b"x-big: " + b"a" * size + b"\r\n\r\n")
            statuses.append((await connection.answer()).status)

    assert statuses == [431, 200]


async def test_bodies_do_not_count_as_the_next_requests_head(gateway: Gateway) -> None:
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "hi"}], "pad": "x" * 200_000})
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {gateway.tenant.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    async with connected(gateway) as connection:
        statuses = []
        for _ in range(2):
            await connection.send(head + body + PING)
            statuses.append((await connection.answer()).status)
            await connection.send(b"\r\n")
            statuses.append((await connection.answer()).status)

    assert statuses == [200] * 4
