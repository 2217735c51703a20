"""API keys: `sk-weir-<public id>-<secret>`, shown once, stored as HMAC-SHA-256 under the server's pepper.

The public id is twelve random characters and six of a MAC over them, so that a flood of made-up keys is refused for
the price of one HMAC, without a query. The secret is 256 random bits.
"""

from __future__ import annotations

import hmac
import re
import secrets as random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.clock import check_moment, utc_now
from billing.db import note_change
from billing.errors import Conflict, Forbidden, Invalid, InvalidKey, NotFound
from billing.ids import base32, new_id
from billing.principal import Actor, Role, Scope
from billing.secrets import ServerSecret
from billing.tables import ApiKey, KeyStatus, Status, Tenant
from billing.tenants import check_name, check_printable, check_service, check_within, get_project

PREFIX = "sk-weir-"
MAX_KEY_LENGTH = 200  # longer ones are refused unread
MAX_GRACE = timedelta(days=30)
_RANDOM_CHARS, _TAG_CHARS, _SECRET_CHARS = 12, 6, 52
_SHAPE = re.compile(r"sk-weir-([0-9a-hjkmnp-tv-z]{18})-([0-9a-hjkmnp-tv-z]{52})")


class NewKey(msgspec.Struct, frozen=True):
    """A created or rotated key with its plaintext, which exists nowhere else."""

    key: ApiKey
    plaintext: str

    def __repr__(self) -> str:
        return f"NewKey({self.key.id}, {self.key.redacted})"


def split(presented: str, secret: ServerSecret) -> tuple[str, str]:
    """(public id, secret part) of a well-formed key whose tag is ours. Raises: InvalidKey, without echoing it."""
    match = _SHAPE.fullmatch(presented) if len(presented) <= MAX_KEY_LENGTH else None
    if match is None:
        raise InvalidKey("the API key is malformed")
    public_id = match[1]
    if not hmac.compare_digest(public_id[_RANDOM_CHARS:], _tag(public_id[:_RANDOM_CHARS], secret)):
        raise InvalidKey("the API key is not one of ours")
    return public_id, match[2]


def digest(secret_part: str, public_id: str, pepper: bytes) -> bytes:
    """What is stored: HMAC-SHA-256 over public id and secret under the pepper."""
    return hmac.digest(pepper, f"{public_id}-{secret_part}".encode(), "sha256")


def status_of(key: ApiKey, now: datetime) -> KeyStatus:
    """Active, expired or revoked at `now`."""
    if key.revoked_at is not None:
        return KeyStatus.REVOKED
    if key.expires_at is not None and key.expires_at <= now:
        return KeyStatus.EXPIRED
    return KeyStatus.ACTIVE


async def create_key(
    session: AsyncSession,
    actor: Actor,
    secret: ServerSecret,
    project: str,
    *,
    tenant: str | None = None,
    name: str,
    scopes: Sequence[str] = (Scope.INFERENCE,),
    role: Role = Role.MEMBER,
    allowed_models: Sequence[str] | None = None,
    max_service_tier: str = "default",
    max_priority: int = 1,
    expires_at: datetime | None = None,
    owner_kind: str = "user",
    tags: dict[str, str] | None = None,
) -> NewKey:
    """The only moment the plaintext exists. Nobody gives a key more than he has, nor more than its tenant.

    Raises: Forbidden, NotFound, Invalid, Conflict when the project is archived.
    """
    owner = await get_project(session, actor, project, tenant=tenant)
    audit.require_admin(actor, owner.tenant_id)
    if role is Role.OPERATOR and actor.role is not Role.OPERATOR:
        raise Forbidden("only an operator makes an operator's key")
    if owner.status is Status.ARCHIVED:
        raise Conflict(f"project {owner.slug!r} is archived")
    now = utc_now()
    if expires_at is not None and check_moment(expires_at, param="expires_at") <= now:
        raise Invalid(f"expires_at: {expires_at.isoformat()} has passed", param="expires_at")
    check_policy(scopes=scopes, max_service_tier=max_service_tier, max_priority=max_priority)
    check_within(await session.get_one(Tenant, owner.tenant_id), max_service_tier, max_priority)
    _check_tags(tags)
    public_id, secret_part = _fresh_public_id(secret), _fresh_secret()
    key = ApiKey(
        id=new_id("key"),
        public_id=public_id,
        tenant_id=owner.tenant_id,
        project_id=owner.id,
        name=check_name(name),
        digest=digest(secret_part, public_id, secret.pepper(secret.current)),
        secret_version=secret.current,
        redacted=_redact(public_id, secret_part),
        role=str(role),
        scopes=sorted({str(s) for s in scopes}),
        allowed_models=list(allowed_models) if allowed_models is not None else None,
        max_service_tier=max_service_tier,
        max_priority=max_priority,
        owner_kind=owner_kind,
        owner_name=name,
        tags=dict(tags or {}),
        created_by=actor.id,
        created_at=now,
        expires_at=expires_at,
    )
    session.add(key)
    await session.flush()
    _audit(session, actor, "api_key.created", key, {"name": name, "scopes": key.scopes, "role": key.role})
    return NewKey(key, f"{PREFIX}{public_id}-{secret_part}")


async def get_key(session: AsyncSession, actor: Actor, key_id: str, *, project: str | None = None) -> ApiKey:
    """Raises: NotFound when absent, foreign, or of another project than `project` (id)."""
    key = await session.get(ApiKey, key_id)
    if key is None or (project is not None and key.project_id != project):
        raise NotFound(f"no such key: {key_id[:80]!r}")
    try:
        audit.require_reader(actor, key.tenant_id, key.project_id)
    except NotFound as exc:
        raise NotFound(f"no such key: {key_id[:80]!r}") from exc
    return key


async def list_keys(
    session: AsyncSession,
    actor: Actor,
    *,
    tenant_id: str | None = None,
    project_id: str | None = None,
    admin_only: bool = False,
    include_revoked: bool = False,
    after: str | None = None,
    limit: int = 100,
) -> list[ApiKey]:
    """By id, keyset-paged, within what the actor may see. `admin_only`: those with the admin scope."""
    if not 1 <= limit <= 1000:
        raise Invalid(f"limit: {limit} is not between 1 and 1000", param="limit")
    if actor.role is not Role.OPERATOR:
        if tenant_id not in (None, actor.tenant_id):
            raise NotFound("no such tenant")
        tenant_id = actor.tenant_id
    if actor.role is Role.MEMBER:
        if project_id not in (None, actor.project_id):
            raise NotFound("no such project")
        project_id = actor.project_id
    query = sa.select(ApiKey).order_by(ApiKey.id)
    if tenant_id is not None:
        query = query.where(ApiKey.tenant_id == tenant_id)
    if project_id is not None:
        query = query.where(ApiKey.project_id == project_id)
    if admin_only:
        query = query.where(ApiKey.role != str(Role.MEMBER))
    if not include_revoked:
        query = query.where(ApiKey.revoked_at.is_(None))
    if after:
        query = query.where(ApiKey.id > after)
    return list(await session.scalars(query.limit(limit)))


async def update_key(
    session: AsyncSession,
    actor: Actor,
    key_id: str,
    *,
    name: str | None = None,
    scopes: Sequence[str] | None = None,
    allowed_models: Sequence[str] | msgspec.UnsetType | None = msgspec.UNSET,
    max_service_tier: str | None = None,
    max_priority: int | None = None,
    expires_at: datetime | msgspec.UnsetType | None = msgspec.UNSET,
    tags: dict[str, str] | None = None,
) -> ApiKey:
    """None leaves a field alone; `allowed_models` and `expires_at` take None as a value. Raises: as create_key."""
    key = await get_key(session, actor, key_id)
    audit.require_admin(actor, key.tenant_id)
    if key.role == Role.OPERATOR:
        audit.require_operator(actor)
    check_policy(scopes=scopes or (), max_service_tier=max_service_tier, max_priority=max_priority)
    check_within(await session.get_one(Tenant, key.tenant_id), max_service_tier, max_priority)
    _check_tags(tags)
    wanted = {
        "name": check_name(name) if name is not None else key.name,
        "scopes": sorted({str(s) for s in scopes}) if scopes is not None else key.scopes,
        "max_service_tier": max_service_tier or key.max_service_tier,
        "max_priority": key.max_priority if max_priority is None else max_priority,
        "tags": tags if tags is not None else key.tags,
        "allowed_models": key.allowed_models,
        "expires_at": key.expires_at,
    }
    if allowed_models is not msgspec.UNSET:
        wanted["allowed_models"] = list(allowed_models) if allowed_models is not None else None
    if expires_at is not msgspec.UNSET:
        if isinstance(expires_at, datetime):
            check_moment(expires_at, param="expires_at")
        wanted["expires_at"] = expires_at
    changed = {}
    for field, value in wanted.items():
        old = getattr(key, field)
        if old != value:
            setattr(key, field, value)
            changed[field] = {"old": _plain(old), "new": _plain(value)}
    if changed:
        _audit(session, actor, "api_key.updated", key, changed)
        note_change(session, "key", key.public_id)
    return key


async def rotate_key(
    session: AsyncSession, actor: Actor, secret: ServerSecret, key_id: str, *, grace: timedelta = timedelta(hours=24)
) -> NewKey:
    """A new secret under the same id; the old one works until `grace` has passed (zero: not at all).

    Raises: Forbidden, NotFound, Invalid, Conflict when the key is revoked.
    """
    key = await get_key(session, actor, key_id)
    audit.require_admin(actor, key.tenant_id)
    if key.role == Role.OPERATOR:
        audit.require_operator(actor)
    if key.revoked_at is not None:
        raise Conflict(f"key {key.id} is revoked; make a new one")
    if not timedelta(0) <= grace <= MAX_GRACE:
        raise Invalid(f"grace: {grace} is not between 0 and {MAX_GRACE}", param="grace")
    now, secret_part = utc_now(), _fresh_secret()
    key.previous_digest, key.previous_secret_version = key.digest, key.secret_version
    key.previous_until = now + grace
    key.digest = digest(secret_part, key.public_id, secret.pepper(secret.current))
    key.secret_version = secret.current
    key.redacted = _redact(key.public_id, secret_part)
    _audit(session, actor, "api_key.rotated", key, {"grace_s": int(grace.total_seconds())})
    note_change(session, "key", key.public_id)
    return NewKey(key, f"{PREFIX}{key.public_id}-{secret_part}")


async def revoke_key(session: AsyncSession, actor: Actor, key_id: str, *, project: str | None = None) -> ApiKey:
    """Refused by every gateway within a second. Revoking twice is harmless. Raises: Forbidden, NotFound."""
    key = await get_key(session, actor, key_id, project=project)
    audit.require_admin(actor, key.tenant_id)
    if key.role == Role.OPERATOR:
        audit.require_operator(actor)
    if key.revoked_at is None:
        key.revoked_at = utc_now()
        _audit(session, actor, "api_key.deleted", key, {"name": key.name})
        note_change(session, "key", key.public_id)
    return key


def check_policy(*, scopes: Sequence[str], max_service_tier: str | None, max_priority: int | None) -> None:
    """Raises: Invalid for an unknown scope or tier, or a priority outside 0 to 2."""
    known = {str(s) for s in Scope}
    for scope in scopes:
        if str(scope) not in known:
            raise Invalid(f"scopes: {str(scope)[:40]!r} is none of {', '.join(sorted(known))}", param="scopes")
    check_service(max_service_tier, max_priority)


def _check_tags(tags: Mapping[str, str] | None) -> None:
    for name, value in (tags or {}).items():
        check_printable(name, "tags")
        check_printable(value, f"tags.{name[:40]}")


def _audit(session: AsyncSession, actor: Actor, action: str, key: ApiKey, detail: Mapping[str, object]) -> None:
    audit.record(
        session, actor, action, key.id, tenant_id=key.tenant_id, project_id=key.project_id, detail=dict(detail)
    )


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _fresh_public_id(secret: ServerSecret) -> str:
    stem = base32(random.randbits(5 * _RANDOM_CHARS), _RANDOM_CHARS)
    return stem + _tag(stem, secret)


def _tag(stem: str, secret: ServerSecret) -> str:
    return base32(int.from_bytes(secret.tag(stem)[:4], "big"), _TAG_CHARS)


def _fresh_secret() -> str:
    return base32(random.randbits(256), _SECRET_CHARS)


def _redact(public_id: str, secret_part: str) -> str:
    return f"{PREFIX}{public_id[:6]}…{secret_part[-4:]}"
