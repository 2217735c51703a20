"""Responses that are kept: for `previous_response_id`, for reading again, for work in the background."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base, enum_column


class ResponseStatus(StrEnum):
    """`queued` and `in_progress` are open; the others are final."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = (ResponseStatus.QUEUED, ResponseStatus.IN_PROGRESS)


class StoredResponse(Base):
    """One response with the items that were its input. `leased_until` is renewed by the gateway that works on it."""

    __tablename__ = "stored_response"
    __table_args__ = (
        sa.Index(None, "tenant_id", "end_user"),
        sa.Index(None, "expires_at"),
        sa.Index(None, "status", "leased_until"),
    )

    id: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(sa.ForeignKey("tenant.id", ondelete="CASCADE"))
    project_id: Mapped[str] = mapped_column(sa.ForeignKey("project.id", ondelete="CASCADE"))
    end_user: Mapped[str | None] = mapped_column(sa.String(256))
    status: Mapped[ResponseStatus] = mapped_column(enum_column(ResponseStatus))
    background: Mapped[bool]
    previous_response_id: Mapped[str | None] = mapped_column(sa.String(128))
    input_items: Mapped[list[dict[str, Any]]] = mapped_column(sa.JSON)
    response: Mapped[dict[str, Any]]
    # Frames by sequence number of a response streamed from the background, all at its end; None: not to be streamed.
    events: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    leased_until: Mapped[datetime | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
