"""Alerts: told once, signed, retried, to whom they belong."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime

import msgspec
import pytest
import sqlalchemy as sa

from billing.alerts import AlertKind, create_endpoint, deliver_due, list_endpoints, raise_alert, remove_endpoint
from billing.errors import Forbidden, Invalid, NotFound, QuotaDenied
from billing.tables import AlertDelivery
from billing.watch import exhausted_at
from billing.windows import window_of
from tests.billing.support import OPERATOR, FakeClock, World, admit, finish, hold


class Receiver:
    """A webhook's other end; `broken` makes it answer with an error."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes, dict[str, str]]] = []
        self.broken = False

    async def __call__(self, url: str, body: bytes, headers: dict[str, str]) -> None:
        if self.broken:
            raise ConnectionError("503 from the receiver")
        self.got.append((url, body, headers))


@pytest.fixture
async def receiver(world: World) -> Receiver:
    made = Receiver()
    world.billing.watcher._deliver = made
    return made


async def endpoint(world: World, tenant: str | None, url: str = "https://hooks.example/weir", **more: object) -> str:
    async with world.billing.db.begin() as session:
        new = await create_endpoint(session, OPERATOR, world.billing.secret, url=url, tenant=tenant, **more)  # type: ignore[arg-type]
    return new.secret


async def test_a_soft_limit_is_told_once_with_a_signature_that_checks(
    world: World, receiver: Receiver, clock: FakeClock
) -> None:
    secret = await endpoint(world, "acme")
    await world.limit("budget_month", 10**9, soft=100 * 2_000)
    for i in range(3):
        ticket = await admit(world, f"r{i}")
        await hold(world, ticket, prompt=0, output=100)
        await finish(world, ticket, prompt=0, output=100)
        await world.billing.watcher.tell()
    ((url, body, headers),) = receiver.got
    assert url == "https://hooks.example/weir"
    stamp, mac = (part.split("=")[1] for part in headers["weir-signature"].split(","))
    assert hmac.new(secret.encode(), f"{stamp}.".encode() + body, "sha256").hexdigest() == mac
    assert int(stamp) == int(clock.now.timestamp())
    payload = msgspec.json.decode(body)
    assert (payload["type"], payload["tenant_id"]) == ("soft_limit", world.tenant.id)
    assert payload["data"]["quota"] == "budget_month"


async def test_a_hard_limit_is_told_when_it_refuses(world: World, receiver: Receiver) -> None:
    await endpoint(world, "acme")
    await world.limit("budget_month", 1)
    with pytest.raises(QuotaDenied):
        await hold(world, await admit(world, "r1"))
    assert await world.billing.watcher.tell() == 1
    assert msgspec.json.decode(receiver.got[0][1])["type"] == "hard_limit"


async def test_of_all_gateways_one_tells(world: World) -> None:
    told = [await raise_alert(world.billing.db, AlertKind.SOFT_LIMIT, once="same news") for _ in range(3)]
    assert told == [True, False, False]


async def test_a_broken_receiver_is_tried_again_ever_more_slowly_until_given_up(
    world: World, receiver: Receiver, clock: FakeClock
) -> None:
    await endpoint(world, None)
    await raise_alert(world.billing.db, AlertKind.LEDGER_DRIFT, once="drift", clock=clock)
    receiver.broken = True
    waits = []
    for _ in range(20):
        await deliver_due(world.billing.db, world.billing.secret, receiver, clock=clock)
        async with world.billing.db.read() as session:
            (delivery,) = await session.scalars(sa.select(AlertDelivery))
        if delivery.state == "failed":
            break
        waits.append((delivery.next_at - clock.now).total_seconds())
        clock.now = delivery.next_at
    assert delivery.attempts == 12
    assert waits[:4] == [10, 20, 40, 80]
    assert delivery.last_error == "ConnectionError: 503 from the receiver"


async def test_one_that_recovers_gets_it_once(world: World, receiver: Receiver, clock: FakeClock) -> None:
    await endpoint(world, None)
    await raise_alert(world.billing.db, AlertKind.LEDGER_DRIFT, once="drift", clock=clock)
    receiver.broken = True
    await deliver_due(world.billing.db, world.billing.secret, receiver, clock=clock)
    receiver.broken = False
    assert await deliver_due(world.billing.db, world.billing.secret, receiver, clock=clock) == 0  # not due yet
    clock.advance(11)
    assert await deliver_due(world.billing.db, world.billing.secret, receiver, clock=clock) == 1
    assert await deliver_due(world.billing.db, world.billing.secret, receiver, clock=clock) == 0
    assert len(receiver.got) == 1


async def test_a_tenant_s_endpoint_hears_only_of_its_tenant_and_of_the_kinds_it_asked_for(
    world: World, receiver: Receiver, clock: FakeClock
) -> None:
    await endpoint(world, "acme", "https://acme.example/a", kinds=["hard_limit"])
    await endpoint(world, None, "https://ops.example/o")
    for once, tenant in (("1", world.tenant.id), ("2", "ten_other")):
        await raise_alert(world.billing.db, AlertKind.HARD_LIMIT, once=once, tenant_id=tenant, clock=clock)
        await raise_alert(world.billing.db, AlertKind.SOFT_LIMIT, once="s" + once, tenant_id=tenant, clock=clock)
    await deliver_due(world.billing.db, world.billing.secret, receiver, clock=clock)
    urls = [url for url, _, _ in receiver.got]
    assert (urls.count("https://acme.example/a"), urls.count("https://ops.example/o")) == (1, 4)


async def test_endpoints_are_checked_and_belong_to_their_tenant(world: World) -> None:
    async with world.billing.db.begin() as session:
        for url in ("ftp://x.example", "https://", "https://user:pw@x.example/", "https://x.example/" + "a" * 2000):
            with pytest.raises(Invalid):
                await create_endpoint(session, OPERATOR, world.billing.secret, url=url)
        with pytest.raises(Forbidden):
            await create_endpoint(session, world.admin, world.billing.secret, url="https://x.example")
        mine = await create_endpoint(session, world.admin, world.billing.secret, url="https://x.example", tenant="acme")
        theirs = await create_endpoint(session, OPERATOR, world.billing.secret, url="https://y.example")
        assert mine.secret not in repr(mine)
    async with world.billing.db.begin() as session:
        assert [e.id for e in await list_endpoints(session, world.admin)] == [mine.endpoint.id]
        with pytest.raises(NotFound):
            await remove_endpoint(session, world.admin, theirs.endpoint.id)
        await remove_endpoint(session, world.admin, mine.endpoint.id)


def test_a_forecast_says_when_a_budget_runs_out_and_stays_silent_otherwise() -> None:
    window = window_of("month", datetime(2026, 11, 15, tzinfo=UTC), "UTC")
    half = datetime(2026, 11, 16, tzinfo=UTC)
    assert exhausted_at(75, 100, window, half) == datetime(2026, 11, 21, tzinfo=UTC)
    assert exhausted_at(40, 100, window, half) is None  # it lasts
    assert exhausted_at(100, 100, window, half) is None  # it is gone: the hard limit tells that
    assert exhausted_at(75, 100, window, datetime(2026, 11, 2, tzinfo=UTC)) is None  # too early to say


async def test_a_budget_that_will_not_last_is_told(world: World, receiver: Receiver) -> None:
    await endpoint(world, "acme")
    world.billing.ledger.start()
    await world.limit("budget_month", 150 * 2_000)
    ticket = await admit(world, "r1")
    await hold(world, ticket, prompt=0, output=100)
    await finish(world, ticket, prompt=0, output=100)  # two thirds gone in half the month
    await world.billing.watcher.look()
    await world.billing.watcher.tell()
    payload = msgspec.json.decode(receiver.got[0][1])
    assert payload["type"] == "budget_forecast"
    assert (payload["data"]["spent_usd"], payload["data"]["budget_usd"]) == ("0.0002", "0.0003")
