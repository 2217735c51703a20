"""Batches and their lines. A batch is worked on by the one gateway that holds its lease; each answered line is kept at
once, so that whoever takes over goes on behind it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base, enum_column


class BatchStatus(StrEnum):
    """OpenAI's words. The first four are open."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


OPEN = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


class Batch(Base):
    """`principal` is who pays and what the key may do, as of its creation; it holds no secret."""

    __tablename__ = "batch"
    __table_args__ = (sa.Index(None, "tenant_id", "project_id", "id"), sa.Index(None, "status", "leased_until"))

    id: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(sa.ForeignKey("tenant.id", ondelete="CASCADE"))
    project_id: Mapped[str] = mapped_column(sa.ForeignKey("project.id", ondelete="CASCADE"))
    key_id: Mapped[str] = mapped_column(sa.String(40))
    principal: Mapped[dict[str, Any]]
    endpoint: Mapped[str] = mapped_column(sa.String(64))
    input_file_id: Mapped[str] = mapped_column(sa.String(64))
    output_file_id: Mapped[str | None] = mapped_column(sa.String(64))
    error_file_id: Mapped[str | None] = mapped_column(sa.String(64))
    completion_window: Mapped[str] = mapped_column(sa.String(16))
    status: Mapped[BatchStatus] = mapped_column(enum_column(BatchStatus))
    errors: Mapped[list[dict[str, Any]]] = mapped_column(sa.JSON)
    metadata_: Mapped[dict[str, str]] = mapped_column("metadata")
    total: Mapped[int]
    completed: Mapped[int]
    failed: Mapped[int]
    lease_owner: Mapped[str | None] = mapped_column(sa.String(64))
    leased_until: Mapped[datetime | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class BatchLine(Base):
    """One request of a batch. `result` is the line of the output or error file; None until it is answered."""

    __tablename__ = "batch_line"
    __table_args__ = (sa.Index(None, "batch_id", "ok", "number"),)

    batch_id: Mapped[str] = mapped_column(sa.ForeignKey("batch.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    custom_id: Mapped[str] = mapped_column(sa.String(512))
    body: Mapped[str] = mapped_column(sa.Text)
    result: Mapped[str | None] = mapped_column(sa.Text)
    ok: Mapped[bool | None]
