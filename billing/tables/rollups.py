"""Sums derived from the ledger: by 15 minutes with every dimension, and three that make long reports quick."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base


class RollupMark(Base):
    """A bucket that has rows its roll-up may lack. Written with the rows, deleted by the roller that saw it."""

    __tablename__ = "rollup_mark"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    bucket: Mapped[int] = mapped_column(index=True)


class RollupDay(Base):
    """A UTC day (its first second) that has ended and is summed up in usage_by_day."""

    __tablename__ = "rollup_day"

    day: Mapped[int] = mapped_column(primary_key=True)


class Dimensions:
    """What usage is broken down by."""

    tenant_id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    project_id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    key_id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    model: Mapped[str] = mapped_column(sa.String(200), primary_key=True)
    endpoint: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    upstream: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    service_tier: Mapped[str] = mapped_column(sa.String(16), primary_key=True)
    batch: Mapped[bool] = mapped_column(primary_key=True)
    cache_outcome: Mapped[str] = mapped_column(sa.String(16), primary_key=True)
    status: Mapped[str] = mapped_column(sa.String(32), primary_key=True)


class Sums:
    """What is added up. `requests` counts usage and cache hits, not corrections."""

    requests: Mapped[int]
    input_tokens: Mapped[int]
    cached_input_tokens: Mapped[int]
    output_tokens: Mapped[int]
    batch_input_tokens: Mapped[int]
    batch_output_tokens: Mapped[int]
    input_amount_nano: Mapped[int]
    cached_input_amount_nano: Mapped[int]
    output_amount_nano: Mapped[int]
    batch_input_amount_nano: Mapped[int]
    batch_output_amount_nano: Mapped[int]
    adjustment_nano: Mapped[int]
    amount_nano_usd: Mapped[int]
    engine_us: Mapped[int]
    cost_nano_usd: Mapped[int]
    saved_input_tokens: Mapped[int]
    saved_output_tokens: Mapped[int]
    saved_nano_usd: Mapped[int]
    latency_us: Mapped[int]


class UsageRollup(Dimensions, Sums, Base):
    """One bucket of 15 minutes, UTC. Derived: may be deleted and is rebuilt to the same bytes."""

    __tablename__ = "usage_rollup"

    bucket: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)


class UsageByModel(Sums, Base):
    """One bucket of 15 minutes by tenant and model only: what `usage_by_span` is cut into."""

    __tablename__ = "usage_by_model"

    bucket: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)
    tenant_id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    model: Mapped[str] = mapped_column(sa.String(200), primary_key=True)


class UsageBySpan(Sums, Base):
    """Three hours, UTC, by tenant and model only: what a local day holds whole, so that its edges alone are finer."""

    __tablename__ = "usage_by_span"

    bucket: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)  # the span's first second
    tenant_id: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    model: Mapped[str] = mapped_column(sa.String(200), primary_key=True)


class UsageByDay(Dimensions, Sums, Base):
    """One UTC day that has ended, with every dimension: long ranges that need no local days."""

    __tablename__ = "usage_by_day"

    bucket: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)  # the day's first second
