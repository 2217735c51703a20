"""What `weir serve --demo` needs: a tenant, a project, a price and a key. Idempotent but for the key's plaintext."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing import keys, prices, tenants
from billing.errors import InvalidKey, NotFound
from billing.keys import NewKey
from billing.principal import Actor, Role, Scope
from billing.secrets import ServerSecret
from billing.tables import ApiKey, Price, Project, Tenant

SLUG = "demo"
_ACTOR = Actor.operator("system", "demo")
_BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)


class Demo(msgspec.Struct, frozen=True):
    """`new_key` is set when a key was made: its plaintext is not to be had again."""

    tenant: Tenant
    project: Project
    key: ApiKey
    new_key: NewKey | None


async def ensure_demo(
    session: AsyncSession,
    secret: ServerSecret,
    *,
    model: str,
    presented: str | None = None,
    input_nano: int = 150_000_000,
    cached_input_nano: int = 75_000_000,
    output_nano: int = 600_000_000,
) -> Demo:
    """Tenant `demo`, project `demo`, a price for `model` and a key with every scope.

    `presented` is the key a former start left in var/demo.env: it is kept when it still opens this database, else a
    fresh one is made. Prices default to $0.15, $0.075 and $0.60 a million. Runs inside the caller's transaction.
    """
    try:
        tenant = await tenants.get_tenant(session, _ACTOR, SLUG)
    except NotFound:
        tenant = await tenants.create_tenant(session, _ACTOR, slug=SLUG, name="Demo")
    try:
        project = await tenants.get_project(session, _ACTOR, SLUG, tenant=tenant.id)
    except NotFound:
        project = await tenants.create_project(session, _ACTOR, tenant.id, name="Demo", slug=SLUG)
    await ensure_price(
        session, model=model, input_nano=input_nano, cached_input_nano=cached_input_nano, output_nano=output_nano
    )
    key = await _known_key(session, secret, presented, tenant.id)
    if key is not None:
        return Demo(tenant, project, key, None)
    new_key = await keys.create_key(
        session,
        _ACTOR,
        secret,
        project.id,
        name="demo",
        scopes=list(Scope),
        role=Role.ADMIN,
        max_service_tier="priority",
        max_priority=0,
    )
    return Demo(tenant, project, new_key.key, new_key)


async def ensure_price(
    session: AsyncSession, *, model: str, input_nano: int, cached_input_nano: int, output_nano: int
) -> None:
    """A list price for `model` from the beginning on, unless it has one of any kind."""
    query = sa.select(Price.id).where(Price.model == model, Price.tenant_id == "").limit(1)
    if await session.scalar(query) is not None:
        return
    await prices.set_price(
        session,
        _ACTOR,
        model=model,
        input_nano=input_nano,
        cached_input_nano=cached_input_nano,
        output_nano=output_nano,
        effective_from=_BEGINNING,
    )


async def _known_key(
    session: AsyncSession, secret: ServerSecret, presented: str | None, tenant_id: str
) -> ApiKey | None:
    if not presented:
        return None
    try:
        public_id, secret_part = keys.split(presented, secret)
    except InvalidKey:
        return None
    key = await session.scalar(sa.select(ApiKey).where(ApiKey.public_id == public_id, ApiKey.tenant_id == tenant_id))
    if key is None or key.revoked_at is not None:
        return None
    expected = keys.digest(secret_part, public_id, secret.pepper(key.secret_version))
    return key if keys.same(key.digest, expected) else None
