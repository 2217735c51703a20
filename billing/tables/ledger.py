"""The ledger: what every request and adjustment amounts to."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base, enum_column


class EntryKind(StrEnum):
    """`usage`: tokens computed for a request. `cache_hit`: an answer served again, charged by the tenant's policy.

    `correction` names the row it corrects; `adjustment` is an operator's credit or debit.
    """

    USAGE = "usage"
    CACHE_HIT = "cache_hit"
    CORRECTION = "correction"
    ADJUSTMENT = "adjustment"


class EntryStatus(StrEnum):
    """How the request ended. `interrupted`: the gateway died; booked from the last heartbeat's tokens."""

    OK = "ok"
    CLIENT_DISCONNECT = "client_disconnect"
    BUDGET_CUT = "budget_cut"
    TIMEOUT = "timeout"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


_ZERO_SUM = (
    "amount_nano_usd = input_amount_nano + cached_input_amount_nano + output_amount_nano"
    " + batch_input_amount_nano + batch_output_amount_nano + adjustment_nano"
)


class LedgerEntry(Base):
    """One immutable line of what a tenant owes. Never updated: a mistake gets a correction that names it.

    Token classes do not overlap: `input_tokens` are the uncached ones; a batch request fills only the batch columns.
    Amounts are nano-USD, each class rounded once, their sum held by a CHECK. `cost_nano_usd` is what the GPU time
    cost us. A hit's tokens stand in `saved_*`, so that tokens computed are never counted twice; its amounts are what
    is charged for being served again, by the class of those tokens.
    """

    __tablename__ = "ledger_entry"
    __table_args__ = (
        sa.UniqueConstraint("request_id", "attempt", "kind", "seq"),
        sa.CheckConstraint(_ZERO_SUM, name="amounts_add_up"),
        sa.CheckConstraint(
            "kind = 'correction' OR (input_tokens >= 0 AND cached_input_tokens >= 0 AND output_tokens >= 0"
            " AND batch_input_tokens >= 0 AND batch_output_tokens >= 0)",
            name="tokens_not_negative",
        ),
        sa.CheckConstraint("(kind = 'correction') = (corrects_id IS NOT NULL)", name="correction_names_its_row"),
        sa.Index(None, "tenant_id", "id"),
        sa.Index(None, "bucket"),
        sa.Index(None, "tenant_id", "conversation_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    request_id: Mapped[str] = mapped_column(sa.String(64))
    attempt: Mapped[int]
    kind: Mapped[EntryKind] = mapped_column(enum_column(EntryKind))
    seq: Mapped[int]
    corrects_id: Mapped[int | None]
    booked_at: Mapped[datetime]
    accepted_at: Mapped[datetime]  # decides the price, the budget's window and the bucket
    bucket: Mapped[int]  # start of accepted_at's 15 minutes, Unix seconds
    # No foreign keys: the hot insert checks none, and the rows outlive what they name.
    tenant_id: Mapped[str] = mapped_column(sa.String(40))
    project_id: Mapped[str] = mapped_column(sa.String(40))
    key_id: Mapped[str] = mapped_column(sa.String(40))
    endpoint: Mapped[str] = mapped_column(sa.String(32))
    model: Mapped[str] = mapped_column(sa.String(200))
    upstream: Mapped[str] = mapped_column(sa.String(64))
    upstream_model: Mapped[str] = mapped_column(sa.String(200))
    provider_id: Mapped[str | None] = mapped_column(sa.String(200))
    route: Mapped[str] = mapped_column(sa.String(64))
    conversation_id: Mapped[str | None] = mapped_column(sa.String(128))
    conversation_source: Mapped[str] = mapped_column(sa.String(16))
    end_user: Mapped[str | None] = mapped_column(sa.String(128))
    tags: Mapped[dict[str, str]]
    service_tier: Mapped[str] = mapped_column(sa.String(16))
    priority: Mapped[int]
    stream: Mapped[bool]
    status: Mapped[EntryStatus] = mapped_column(enum_column(EntryStatus))
    http_status: Mapped[int]
    finish_reason: Mapped[str | None] = mapped_column(sa.String(32))
    error_code: Mapped[str | None] = mapped_column(sa.String(64))
    input_tokens: Mapped[int]
    cached_input_tokens: Mapped[int]
    output_tokens: Mapped[int]
    batch_input_tokens: Mapped[int]
    batch_output_tokens: Mapped[int]
    reasoning_tokens: Mapped[int]  # part of the output, for display
    input_amount_nano: Mapped[int]
    cached_input_amount_nano: Mapped[int]
    output_amount_nano: Mapped[int]
    batch_input_amount_nano: Mapped[int]
    batch_output_amount_nano: Mapped[int]
    adjustment_nano: Mapped[int]
    amount_nano_usd: Mapped[int]
    price_id: Mapped[str | None] = mapped_column(sa.String(40))
    discount_ppm: Mapped[int]
    engine_us: Mapped[int]
    cost_nano_usd: Mapped[int]
    cost_version: Mapped[str | None] = mapped_column(sa.String(64))
    cache_outcome: Mapped[str] = mapped_column(sa.String(16))
    saved_input_tokens: Mapped[int]
    saved_output_tokens: Mapped[int]
    saved_nano_usd: Mapped[int]
    ttft_us: Mapped[int | None]
    latency_us: Mapped[int | None]
    queue_us: Mapped[int | None]
    origin: Mapped[str] = mapped_column(sa.String(16))  # gateway, reaper or operator
    note: Mapped[str | None] = mapped_column(sa.String(500))
