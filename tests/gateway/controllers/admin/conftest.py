"""Two tenants with every role's key, over a running gateway."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from billing import keys, tenants
from billing.entry import Entry
from billing.prices import Rates, TokenCounts
from billing.principal import Actor, Role, Scope
from billing.tables import AuditEvent
from tests.billing.conftest import migrated_postgres, postgres_server, postgres_url
from tests.gateway.conftest import Gateway, StartGateway

__all__ = ["migrated_postgres", "postgres_server", "postgres_url"]

OPERATOR = Actor.operator("system", "test")
RATES = Rates(
    price_id="price_1",
    model="m",
    input=37_500_000,
    cached_input=10_000_000,
    output=150_000_000,
    batch_input=18_750_000,
    batch_output=75_000_000,
)
EVERY_SCOPE = [Scope.INFERENCE, Scope.USAGE_READ, Scope.ADMIN]


class Company(msgspec.Struct, kw_only=True):
    """A tenant, its project, and the plaintext and id of a key of each role."""

    id: str
    slug: str
    project: str
    keys: dict[str, str]
    key_ids: dict[str, str]


class Office:
    """A gateway with an operator and two companies, `acme` and `rival`."""

    def __init__(self, gateway: Gateway, operator: str, acme: Company, rival: Company) -> None:
        self.gateway = gateway
        self.operator = operator
        self.acme = acme
        self.rival = rival

    async def call(self, method: str, path: str, key: str | None, body: Any = None, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await self.gateway.client.request(
            method, path, headers={**headers, **options.pop("headers", {})}, json=body, **options
        )

    async def ok(self, method: str, path: str, key: str | None = None, body: Any = None, **options: Any) -> Any:
        """The decoded answer of a call that must succeed; as the operator where no key is given."""
        response = await self.call(method, path, key or self.operator, body, **options)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        return response.json() if response.content else None

    async def refused(
        self, status: int, method: str, path: str, key: str | None = None, body: Any = None, **options: Any
    ) -> dict[str, Any]:
        """The error of a call that must be refused with `status`."""
        response = await self.call(method, path, key or self.operator, body, **options)
        assert response.status_code == status, f"{method} {path}: {response.status_code} {response.text}"
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    async def audit(self) -> list[AuditEvent]:
        """Every audit event, oldest first."""
        async with self.gateway.parts.billing.db.read() as session:
            return list(await session.scalars(sa.select(AuditEvent).order_by(AuditEvent.id)))


async def book(gateway: Gateway, key: str, **fields: Any) -> Entry:
    """One usage row of the key's owner: 1000 prompt tokens, 900 of them cached, 100 of output, unless told."""
    billing = gateway.parts.billing
    usual: dict[str, Any] = {
        "endpoint": "chat.completions",
        "model": "m",
        "accepted_at": datetime.now(UTC),
        "tokens": TokenCounts.of(prompt_tokens=1000, cached_tokens=900, completion_tokens=100),
        "rates": RATES,
    }
    principal = await billing.auth.authenticate(key)
    entry = Entry.priced(principal=principal, **{**usual, **fields})
    await billing.ledger.write([entry])
    return entry


async def make_company(gateway: Gateway, slug: str) -> Company:
    """Keys: `admin`, `member` (usage:read), `inference`."""
    made: dict[str, keys.NewKey] = {}
    async with gateway.parts.billing.db.begin() as session:
        tenant = await tenants.create_tenant(session, OPERATOR, slug=slug)
        project = await tenants.create_project(session, OPERATOR, tenant.id, name=f"{slug} web")
        kinds: dict[str, tuple[Role, list[Scope]]] = {
            "admin": (Role.ADMIN, EVERY_SCOPE),
            "member": (Role.MEMBER, [Scope.INFERENCE, Scope.USAGE_READ]),
            "inference": (Role.MEMBER, [Scope.INFERENCE]),
        }
        for name, (role, scopes) in kinds.items():
            made[name] = await keys.create_key(
                session,
                OPERATOR,
                gateway.parts.billing.secret,
                project.id,
                name=f"{slug}-{name}",
                role=role,
                scopes=scopes,
            )
    await book(gateway, made["member"].plaintext, request_id=f"req_of_{slug}")
    return Company(
        id=tenant.id,
        slug=slug,
        project=project.id,
        keys={name: key.plaintext for name, key in made.items()},
        key_ids={name: key.key.id for name, key in made.items()},
    )


on_both_databases = pytest.mark.parametrize("office_database", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def office_database(request: pytest.FixtureRequest) -> str:
    """The office's database URL; empty: SQLite in the gateway's own folder."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return ""
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def office(office_database: str, start_gateway: StartGateway) -> Office:
    """The gateway's own first tenant is `acme`; these companies are `globex` and `rival`."""
    gateway = await start_gateway(database_url=office_database)
    async with gateway.parts.billing.db.begin() as session:
        house = await tenants.create_tenant(session, OPERATOR, slug="house")
        project = await tenants.create_project(session, OPERATOR, house.id, name="ops")
        operator = await keys.create_key(
            session,
            OPERATOR,
            gateway.parts.billing.secret,
            project.id,
            name="operator",
            role=Role.OPERATOR,
            scopes=EVERY_SCOPE,
        )
    return Office(
        gateway, operator.plaintext, await make_company(gateway, "globex"), await make_company(gateway, "rival")
    )
