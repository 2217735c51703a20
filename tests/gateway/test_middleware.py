"""Around every request, on real sockets: HEAD as GET, clients that leave."""

from __future__ import annotations

import pytest

from tests.gateway.conftest import Gateway
from tests.gateway.sockets import connected


@pytest.mark.parametrize("path", ["/health", "/version", "/nowhere"])
async def test_head_says_gets_length_and_its_connection_lives_on(gateway: Gateway, path: str) -> None:
    async with connected(gateway) as connection:
        await connection.send(f"HEAD {path} HTTP/1.1\r\nhost: weir\r\n\r\n".encode())
        head = await connection.answer(body=False)
        await connection.send(f"GET {path} HTTP/1.1\r\nhost: weir\r\n\r\n".encode())
        got = await connection.answer()

    assert (head.status, head.headers["content-type"]) == (got.status, got.headers["content-type"])
    assert head.headers["content-length"] == got.headers["content-length"]
    assert len(got.body) == int(got.headers["content-length"]) > 0
