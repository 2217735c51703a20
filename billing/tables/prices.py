"""What a token costs the tenant, and what an hour of the GPU costs us. Versioned by effective dates, never edited."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base


class Price(Base):
    """Nano-USD per million tokens of each class for a model, from a moment on; `tenant_id` makes it an override."""

    __tablename__ = "price"
    __table_args__ = (
        sa.CheckConstraint(
            "input_nano >= 0 AND cached_input_nano >= 0 AND output_nano >= 0"
            " AND batch_input_nano >= 0 AND batch_output_nano >= 0",
            name="not_negative",
        ),
        sa.CheckConstraint("effective_to IS NULL OR effective_to > effective_from", name="dates_in_order"),
        # NULLs are distinct in a unique index: list prices carry an empty tenant, so that two cannot start together.
        sa.UniqueConstraint("model", "tenant_id", "service_tier", "effective_from"),
    )

    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    model: Mapped[str] = mapped_column(sa.String(200))
    tenant_id: Mapped[str] = mapped_column(sa.String(40))
    service_tier: Mapped[str] = mapped_column(sa.String(16))
    input_nano: Mapped[int]
    cached_input_nano: Mapped[int]
    output_nano: Mapped[int]
    batch_input_nano: Mapped[int]
    batch_output_nano: Mapped[int]
    effective_from: Mapped[datetime]
    effective_to: Mapped[datetime | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(sa.String(64))


class Discount(Base):
    """Parts per million off the list price for a tenant, for one model or (`model` empty) for all."""

    __tablename__ = "discount"
    __table_args__ = (
        sa.CheckConstraint("ppm >= 0 AND ppm <= 1000000", name="at_most_all"),
        sa.CheckConstraint("effective_to IS NULL OR effective_to > effective_from", name="dates_in_order"),
        sa.UniqueConstraint("tenant_id", "model", "effective_from"),
    )

    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(sa.ForeignKey("tenant.id", ondelete="RESTRICT"))
    model: Mapped[str] = mapped_column(sa.String(200))
    ppm: Mapped[int]
    effective_from: Mapped[datetime]
    effective_to: Mapped[datetime | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(sa.String(64))


class GpuPrice(Base):
    """What an hour of the hardware behind an upstream costs us, in nano-USD, from a moment on."""

    __tablename__ = "gpu_price"
    __table_args__ = (
        sa.CheckConstraint("hour_nano >= 0", name="not_negative"),
        sa.UniqueConstraint("upstream", "effective_from"),
    )

    id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    upstream: Mapped[str] = mapped_column(sa.String(64))
    hour_nano: Mapped[int]
    effective_from: Mapped[datetime]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(sa.String(64))
