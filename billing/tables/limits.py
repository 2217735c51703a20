"""What may be used and spent."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base


class LimitRule(Base):
    """One quota of one scope, for every model (`model` empty) or for one.

    `hard` refuses, `soft` alerts; the unit is the quota's: requests, tokens, concurrent requests or nano-USD.
    """

    __tablename__ = "limit_rule"
    __table_args__ = (
        sa.UniqueConstraint("scope_kind", "scope_id", "model", "quota"),
        sa.CheckConstraint("hard IS NOT NULL OR soft IS NOT NULL", name="hard_or_soft"),
        sa.CheckConstraint("hard >= 0 AND soft >= 0", name="not_negative"),
        sa.Index(None, "tenant_id"),
    )

    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(sa.ForeignKey("tenant.id", ondelete="RESTRICT"))
    scope_kind: Mapped[str] = mapped_column(sa.String(16))
    scope_id: Mapped[str] = mapped_column(sa.String(40))
    model: Mapped[str] = mapped_column(sa.String(200))
    quota: Mapped[str] = mapped_column(sa.String(32))
    hard: Mapped[int | None]
    soft: Mapped[int | None]
    updated_at: Mapped[datetime]
