"""Where alerts go, what is still to be delivered, and what was already said."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base


class AlertEndpoint(Base):
    """A webhook. `tenant_id` empty receives everything; the signing secret is encrypted under the server secret."""

    __tablename__ = "alert_endpoint"

    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(sa.String(40), index=True)
    url: Mapped[str] = mapped_column(sa.String(2000))
    kinds: Mapped[list[str]]  # empty: every kind
    secret: Mapped[bytes]
    disabled_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class AlertDelivery(Base):
    """The outbox: one alert for one endpoint, kept until delivered or given up."""

    __tablename__ = "alert_delivery"
    __table_args__ = (sa.Index(None, "state", "next_at"),)

    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(sa.ForeignKey("alert_endpoint.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(sa.String(32))
    payload: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(sa.String(16))  # pending, delivered, failed
    attempts: Mapped[int]
    next_at: Mapped[datetime]
    last_error: Mapped[str | None] = mapped_column(sa.String(500))
    created_at: Mapped[datetime]


class AlertState(Base):
    """A key per thing already alerted (limit, window): the same news is told once, by whichever gateway is first."""

    __tablename__ = "alert_state"

    key: Mapped[str] = mapped_column(sa.String(300), primary_key=True)
    fired_at: Mapped[datetime]
