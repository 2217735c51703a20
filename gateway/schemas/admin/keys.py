"""API keys. The plaintext stands in the answer that makes or rotates one, and nowhere else."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from billing import keys
from billing.clock import utc_now
from billing.tables import ApiKey
from gateway.schemas.admin.common import Moment, Name, PageQuery, Priority, Ref, Tags, Tier

Scopes = Annotated[list[Literal["inference", "usage:read", "admin"]], Meta(max_length=3)]
Models = Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=1000)]


class KeyCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`project` is an id, or a slug with `tenant` beside it. `allowed_models` null lets every model through."""

    project: Ref
    tenant: Ref | None = None
    name: Name = "key"
    scopes: Scopes = msgspec.field(default_factory=lambda: ["inference"])
    role: Literal["member", "admin", "operator"] = "member"
    allowed_models: Models | None = None
    max_service_tier: Tier = "default"
    max_priority: Priority = 1
    expires_at: Moment | None = None
    tags: Tags = {}


class KeyUpdate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays; null takes the allow-list or the expiry away."""

    name: Name | None = None
    scopes: Scopes | None = None
    allowed_models: Models | UnsetType | None = UNSET
    max_service_tier: Tier | None = None
    max_priority: Priority | None = None
    expires_at: Moment | UnsetType | None = UNSET
    tags: Tags | None = None


class KeyRotate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How long the old secret goes on working, seconds."""

    grace_s: Annotated[int, Meta(ge=0, le=30 * 86_400)] = 86_400


class KeyQuery(PageQuery, kw_only=True, forbid_unknown_fields=True):
    tenant: Ref | None = None
    project: Ref | None = None
    include_revoked: bool = False


class KeyView(msgspec.Struct, kw_only=True):
    id: str
    tenant_id: str
    project_id: str
    name: str
    redacted: str
    status: str
    role: str
    scopes: list[str]
    allowed_models: list[str] | None
    max_service_tier: str
    max_priority: int
    tags: dict[str, str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    old_secret_until: datetime | None

    @classmethod
    def of(cls, key: ApiKey) -> KeyView:
        """From its row; digests stay behind."""
        return cls(
            id=key.id,
            tenant_id=key.tenant_id,
            project_id=key.project_id,
            name=key.name,
            redacted=key.redacted,
            status=str(keys.status_of(key, utc_now())),
            role=key.role,
            scopes=key.scopes,
            allowed_models=key.allowed_models,
            max_service_tier=key.max_service_tier,
            max_priority=key.max_priority,
            tags=key.tags,
            created_at=key.created_at,
            created_by=key.created_by,
            expires_at=key.expires_at,
            revoked_at=key.revoked_at,
            last_used_at=key.last_used_at,
            old_secret_until=key.previous_until,
        )


class NewKeyView(msgspec.Struct, kw_only=True):
    """`key` is the plaintext: it is not shown again."""

    key: str
    details: KeyView
