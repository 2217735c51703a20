"""Who is calling: what a presented key opens. Made by `billing.auth`, carried through a request, never changed."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

SERVICE_TIERS = ("flex", "default", "priority")  # rising: a key's cap allows its own and everything before it


class Role(StrEnum):
    """What an admin act may touch: everything, one tenant, or nothing but reading one project."""

    OPERATOR = "operator"
    ADMIN = "admin"
    MEMBER = "member"


class Scope(StrEnum):
    """What a key may be used for."""

    INFERENCE = "inference"
    USAGE_READ = "usage:read"
    ADMIN = "admin"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's project's key, as looked up.

    `allowed_models` None means every model; an empty tuple means none. `max_service_tier` caps `service_tier`;
    `max_priority` is the smallest (most urgent) engine priority number the key may ask for. `cache_policy` is opaque
    here: the gateway hands it to the cache. `grace_nano_usd` is what the tenant may spend while Redis is away.
    """

    tenant_id: str
    tenant_slug: str
    project_id: str
    project_slug: str
    key_id: str
    key_name: str
    scopes: frozenset[str]
    role: Role = Role.MEMBER
    allowed_models: tuple[str, ...] | None = None
    max_service_tier: str = "default"
    max_priority: int = 1
    time_zone: str = "UTC"
    grace_nano_usd: int = 0
    cache_policy: dict[str, Any] = {}
    tags: dict[str, str] = {}

    def may_use(self, model: str) -> bool:
        """True when the key's allow-list lets `model` through."""
        return self.allowed_models is None or model in self.allowed_models

    def has_scope(self, scope: str) -> bool:
        """True when the key carries the scope."""
        return scope in self.scopes


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who performs an administrative act, for the role check and the audit log.

    `kind` is `key`, `cli` or `system`. An operator has no tenant of his own here.
    """

    kind: str
    id: str
    role: Role
    tenant_id: str | None = None
    project_id: str | None = None
    request_id: str | None = None
    ip: str | None = None

    @classmethod
    def operator(cls, kind: str = "cli", id: str = "local") -> Actor:
        """The host's owner: the CLI, migrations, the demo."""
        return cls(kind=kind, id=id, role=Role.OPERATOR)

    @classmethod
    def of(cls, principal: Principal, *, request_id: str | None = None, ip: str | None = None) -> Actor:
        """The actor behind a key. A key without the admin scope acts as a member whatever its role says."""
        role = principal.role if principal.has_scope(Scope.ADMIN) else Role.MEMBER
        return cls(
            kind="key",
            id=principal.key_id,
            role=role,
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            request_id=request_id,
            ip=ip,
        )
