"""Files of tenants: batch inputs and outputs. Content lies in pieces, so that none is ever whole in memory."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base


class StoredFile(Base):
    """One file. `size_bytes` is that of all its pieces together."""

    __tablename__ = "stored_file"
    __table_args__ = (sa.Index(None, "tenant_id", "project_id", "id"), sa.Index(None, "expires_at"))

    id: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(sa.ForeignKey("tenant.id", ondelete="CASCADE"))
    project_id: Mapped[str] = mapped_column(sa.ForeignKey("project.id", ondelete="CASCADE"))
    filename: Mapped[str] = mapped_column(sa.String(512))
    purpose: Mapped[str] = mapped_column(sa.String(32))
    size_bytes: Mapped[int]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class FilePiece(Base):
    """A piece of a file's content, in order of `seq`."""

    __tablename__ = "file_piece"

    file_id: Mapped[str] = mapped_column(sa.ForeignKey("stored_file.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[bytes]
