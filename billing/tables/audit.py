"""Who changed what, when."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base


class AuditEvent(Base):
    """One administrative act, written in the transaction that performed it. Never changed."""

    __tablename__ = "audit_event"
    __table_args__ = (sa.Index(None, "tenant_id", "id"),)

    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    effective_at: Mapped[datetime]
    action: Mapped[str] = mapped_column(sa.String(64))  # OpenAI's event types: api_key.created, project.updated ...
    actor_kind: Mapped[str] = mapped_column(sa.String(16))
    actor_id: Mapped[str] = mapped_column(sa.String(64))
    actor_role: Mapped[str] = mapped_column(sa.String(16))
    tenant_id: Mapped[str | None] = mapped_column(sa.String(40))
    project_id: Mapped[str | None] = mapped_column(sa.String(40))
    resource_id: Mapped[str] = mapped_column(sa.String(200))
    request_id: Mapped[str | None] = mapped_column(sa.String(64))
    ip: Mapped[str | None] = mapped_column(sa.String(64))
    detail: Mapped[dict[str, Any]]  # old and new values; never a secret
