"""Tenants and projects."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from billing.money import format_usd
from billing.tables import Project, Tenant
from cache.policy import TenantCachePolicy
from gateway.schemas.admin.common import Name, PageQuery, Priority, Ref, Slug, Tier, Usd


class TenantCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`max_service_tier` and `max_priority` are the most that any key of the tenant may have."""

    slug: Slug
    name: Name | None = None
    time_zone: str = "UTC"
    grace_usd: Usd = "0"
    max_service_tier: Tier = "default"
    max_priority: Priority = 1
    cache_policy: TenantCachePolicy | None = None
    settings: dict[str, Any] = {}


class TenantUpdate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays; `cache_policy` and `settings` are replaced whole."""

    name: Name | None = None
    time_zone: str | None = None
    grace_usd: Usd | None = None
    max_service_tier: Tier | None = None
    max_priority: Priority | None = None
    status: Literal["active", "suspended"] | None = None
    cache_policy: TenantCachePolicy | None = None
    settings: dict[str, Any] | None = None


class TenantView(msgspec.Struct, kw_only=True):
    id: str
    slug: str
    name: str
    status: str
    time_zone: str
    grace_usd: str
    max_service_tier: str
    max_priority: int
    cache_policy: dict[str, Any]
    settings: dict[str, Any]
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, tenant: Tenant) -> TenantView:
        """From its row."""
        return cls(
            id=tenant.id,
            slug=tenant.slug,
            name=tenant.name,
            status=str(tenant.status),
            time_zone=tenant.time_zone,
            grace_usd=format_usd(tenant.grace_nano_usd),
            max_service_tier=tenant.max_service_tier,
            max_priority=tenant.max_priority,
            cache_policy=tenant.cache_policy,
            settings=tenant.settings,
            created_at=tenant.created_at,
            updated_at=tenant.updated_at,
        )


class ProjectCreate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tenant` (id or slug) may be left out by a tenant's own admin."""

    name: Name
    slug: Slug | None = None
    tenant: Ref | None = None


class ProjectUpdate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: Name


class ProjectQuery(PageQuery, kw_only=True, forbid_unknown_fields=True):
    tenant: Ref | None = None
    include_archived: bool = False


class ProjectView(msgspec.Struct, kw_only=True):
    id: str
    tenant_id: str
    slug: str
    name: str
    status: str
    created_at: datetime
    archived_at: datetime | None

    @classmethod
    def of(cls, project: Project) -> ProjectView:
        """From its row."""
        return cls(
            id=project.id,
            tenant_id=project.tenant_id,
            slug=project.slug,
            name=project.name,
            status=str(project.status),
            created_at=project.created_at,
            archived_at=project.archived_at,
        )
