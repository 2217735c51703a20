"""Around every request, on real sockets: HEAD as GET, clients that leave."""

from __future__ import annotations

import logging

import pytest

from tests.gateway.conftest import Gateway, until
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


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_client_that_leaves_amid_its_body_is_499_and_no_fault_of_ours(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    head = f"POST {path} HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer {gateway.tenant.key}\r\n"
    async with connected(gateway) as connection:
        await connection.send(f'{head}content-type: application/json\r\ncontent-length: 999\r\n\r\n{{"m'.encode())
        connection.leave()
        await until(lambda: any(record.name == "gateway.access" for record in caplog.records))

    (said,) = (record for record in caplog.records if record.name.startswith("gateway"))
    assert (said.levelname, said.getMessage(), said.exc_info) == ("INFO", f"POST {path} 499", None)
    counted = (await gateway.client.get("/metrics")).text
    assert f'gateway_http_requests_total{{route="{path}",status="499"}} 1.0' in counted
    assert 'status="500"' not in counted
