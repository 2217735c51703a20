"""A request's head is bounded and a client that leaves is noticed, on real sockets."""

from __future__ import annotations

import msgspec
import pytest

from gateway.errors import MAX_HEAD_BYTES
from gateway.http_protocol import BoundedHttpProtocol, Leave
from tests.gateway.conftest import Gateway, until
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


async def test_a_client_that_leaves_is_noticed_after_a_body_whose_last_lump_paused_reading(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    when_lost, paused = BoundedHttpProtocol.when_lost, []

    def lump(self: BoundedHttpProtocol, leave: Leave | None) -> None:
        paused.append(self.flow.read_paused)
        when_lost(self, leave)

    monkeypatch.setattr(BoundedHttpProtocol, "when_lost", lump)
    gateway.engine.gate.clear()
    for size in (150_000, 300_000, 500_000):  # how the kernel cuts a body into reads is its own affair
        body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "hi"}], "pad": "x" * size})
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {gateway.tenant.key}\r\n"
            f"content-type: application/json\r\nexpect: 100-continue\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        before = len(gateway.engine.aborted)
        async with connected(gateway) as connection:
            await connection.send(head)
            assert (await connection.answer(body=False)).status == 100  # the application waits for the body
            await connection.send(body)
            await until(lambda: bool(gateway.engine.running))
            connection.leave()
            await until(lambda before=before: len(gateway.engine.aborted) > before)  # type: ignore[misc]

    assert any(paused)
