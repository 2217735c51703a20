"""Alerts reach their receivers: signed, again until they are taken, and never inside the operator's network."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from billing import alerts
from billing.alerts import AlertKind, deliver_due, raise_alert
from billing.clock import utc_now
from billing.errors import Invalid
from billing.principal import Actor, Role
from gateway.webhooks import WebhookClient, WebhookRefused, check_receiver
from tests.gateway.conftest import Gateway, StartGateway

OPERATOR = Actor.operator("system", "test")


class Receiver:
    """A webhook's other end; answers with the statuses it is told, 204 after that."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self.url = ""
        self.arrived = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        self.taken.append((dict(request.headers), await request.read()))
        self.arrived.set()
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"location": self.url} if status == 302 else {})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    app = web.Application()
    app.router.add_post("/hook", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    made.url = f"http://127.0.0.1:{port}/hook"
    yield made
    await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[WebhookClient]:
    made = WebhookClient(allow_private=True)
    yield made
    await made.close()


async def _subscribe(gateway: Gateway, url: str) -> str:
    billing = gateway.parts.billing
    async with billing.db.begin() as session:
        return (await alerts.create_endpoint(session, OPERATOR, billing.secret, url=url)).secret


async def test_limit_that_refuses_reaches_the_webhook_signed(start_gateway: StartGateway, receiver: Receiver) -> None:
    # given a gateway that delivers, and a budget of nothing
    gateway = await start_gateway(webhook_private_hosts=True)
    secret = await _subscribe(gateway, receiver.url)
    await gateway.set_limit(gateway.tenant, "budget_month", 0)
    # when a request meets it
    assert (await gateway.chat("hi")).status_code == 429
    async with asyncio.timeout(60):
        await receiver.arrived.wait()
    # then the receiver can check who sent it
    headers, body = receiver.taken[0]
    parts = dict(part.split("=", 1) for part in headers["weir-signature"].split(","))
    expected = hmac.new(secret.encode(), f"{parts['t']}.".encode() + body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(parts["v1"], expected)
    assert headers["weir-event"] == "hard_limit"
    assert b'"quota":"budget_month"' in body
    assert secret.encode() not in body


async def test_refused_alert_is_delivered_again_and_once(
    gateway: Gateway, receiver: Receiver, client: WebhookClient
) -> None:
    billing, now = gateway.parts.billing, utc_now()
    await _subscribe(gateway, receiver.url)
    await raise_alert(billing.db, AlertKind.LEDGER_DRIFT, once="drift-1")
    receiver.statuses = [500, 302, 410]
    counts = [
        await deliver_due(billing.db, billing.secret, client, clock=lambda wait=wait: now + timedelta(hours=wait))
        for wait in range(1, 7)
    ]
    # then three failures were followed by one success and nothing more
    assert counts == [0, 0, 0, 1, 0, 0]
    assert len(receiver.taken) == 4
    assert len({headers["weir-delivery"] for headers, _ in receiver.taken}) == 1


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.8", "169.254.169.254", "192.168.1.1", "[::1]", "[fd00::1]", "[::ffff:127.0.0.1]"]
)
async def test_private_address_is_not_spoken_to(host: str) -> None:
    client = WebhookClient()
    with pytest.raises(WebhookRefused):
        await client(f"http://{host}:9/hook", b"{}", {})
    await client.close()


async def test_name_that_leads_to_a_private_address_is_not_spoken_to(receiver: Receiver) -> None:
    client = WebhookClient(resolver=Leading("127.0.0.1"))
    with pytest.raises(WebhookRefused):
        await client(receiver.url.replace("127.0.0.1", "innocent.example"), b"{}", {})
    await client.close()
    assert receiver.taken == []


class Leading(AbstractResolver):
    """Every name leads to one address, or nowhere."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if self._address is None:
            raise OSError("no such name")
        entry: Any = {"hostname": host, "host": self._address, "port": port, "family": family, "proto": 0, "flags": 0}
        return [entry]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.8:9", "169.254.169.254", "[fd00::1]", "[::ffff:127.0.0.1]", "localhost"]
)
async def test_a_private_address_is_refused_when_it_is_named(start_gateway: StartGateway, host: str) -> None:
    body = {"url": f"http://{host}/hook"}
    gateway = await start_gateway()
    admin = await gateway.add_tenant("globex", role=Role.ADMIN, scopes=["admin"])
    refused = await gateway.post("/admin/v1/webhooks", body, admin)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "url"
    assert "not public" in refused.json()["error"]["message"]
    # but by who said that private receivers are meant
    gateway = await start_gateway(webhook_private_hosts=True)
    admin = await gateway.add_tenant("globex", role=Role.ADMIN, scopes=["admin"])
    assert (await gateway.post("/admin/v1/webhooks", body, admin)).status_code == 201


async def test_a_name_is_looked_up_when_it_is_named() -> None:
    url = "https://hooks.example/x"
    with pytest.raises(Invalid, match="not public"):
        await check_receiver(url, allow_private=False, resolver=Leading("192.168.0.9"))
    await check_receiver(url, allow_private=False, resolver=Leading("9.9.9.9"))
    await check_receiver(url, allow_private=False, resolver=Leading(None))  # it may lead somewhere later


@pytest.mark.parametrize("url", ["http://[::1", "http://host:99999/", "http://a\nb/", "ftp://a/"])
async def test_a_malformed_address_is_refused_by_name(gateway: Gateway, url: str) -> None:
    admin = await gateway.add_tenant("globex", role=Role.ADMIN, scopes=["admin"])
    refused = await gateway.post("/admin/v1/webhooks", {"url": url}, admin)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "url")
