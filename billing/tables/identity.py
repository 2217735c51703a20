"""Who pays (tenant), for what (project), with which credential (API key)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base, enum_column


class Status(StrEnum):
    """A tenant or project: active, suspended (keys answer 403 until lifted) or archived (for good)."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    ARCHIVED = "archived"


class KeyStatus(StrEnum):
    """What a list of keys shows; worked out from the moments, never stored."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class Tenant(Base):
    """Who pays. Its time zone cuts the days, weeks and months of its budgets and reports."""

    __tablename__ = "tenant"

    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    slug: Mapped[str] = mapped_column(sa.String(63), unique=True)
    name: Mapped[str] = mapped_column(sa.String(200))
    status: Mapped[Status] = mapped_column(enum_column(Status))
    time_zone: Mapped[str] = mapped_column(sa.String(64))
    grace_nano_usd: Mapped[int]  # what may be spent unseen while Redis is away; 0: budgets fail closed
    cache_policy: Mapped[dict[str, Any]]
    settings: Mapped[dict[str, Any]]  # retention, prompt storage: read by the gateway
    # The most any key of the tenant may have, in force over what the keys say. The operator's.
    max_service_tier: Mapped[str] = mapped_column(sa.String(16), server_default="default")
    max_priority: Mapped[int] = mapped_column(server_default="1")
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class Project(Base):
    """A business line or cost centre of a tenant."""

    __tablename__ = "project"
    __table_args__ = (sa.UniqueConstraint("tenant_id", "slug"),)

    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(sa.ForeignKey("tenant.id", ondelete="RESTRICT"))
    slug: Mapped[str] = mapped_column(sa.String(63))
    name: Mapped[str] = mapped_column(sa.String(200))
    status: Mapped[Status] = mapped_column(enum_column(Status))
    external_key_id: Mapped[str | None] = mapped_column(sa.String(200))
    created_at: Mapped[datetime]
    archived_at: Mapped[datetime | None]


class ApiKey(Base):
    """A credential. The secret is stored as an HMAC under the server's pepper and never shown again.

    Rotating keeps the row, so that limits and spend stay with the key: the old secret's digest moves to
    `previous_digest` and works until `previous_until`.
    """

    __tablename__ = "api_key"
    __table_args__ = (sa.Index(None, "tenant_id", "id"), sa.Index(None, "project_id", "id"))

    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    public_id: Mapped[str] = mapped_column(sa.String(32), unique=True)
    tenant_id: Mapped[str] = mapped_column(sa.ForeignKey("tenant.id", ondelete="RESTRICT"))
    project_id: Mapped[str] = mapped_column(sa.ForeignKey("project.id", ondelete="RESTRICT"))
    name: Mapped[str] = mapped_column(sa.String(200))
    digest: Mapped[bytes] = mapped_column(sa.LargeBinary(32))
    secret_version: Mapped[int]
    previous_digest: Mapped[bytes | None] = mapped_column(sa.LargeBinary(32))
    previous_secret_version: Mapped[int | None]
    previous_until: Mapped[datetime | None]
    redacted: Mapped[str] = mapped_column(sa.String(64))
    role: Mapped[str] = mapped_column(sa.String(16))
    scopes: Mapped[list[str]]
    allowed_models: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    max_service_tier: Mapped[str] = mapped_column(sa.String(16))
    max_priority: Mapped[int]
    owner_kind: Mapped[str] = mapped_column(sa.String(16))  # user or service_account, for OpenAI's admin shapes
    owner_name: Mapped[str] = mapped_column(sa.String(200))
    tags: Mapped[dict[str, str]]
    created_by: Mapped[str] = mapped_column(sa.String(64))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
