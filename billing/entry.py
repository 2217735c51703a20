"""A ledger entry before it is booked: what the gateway, the reaper and the journal hand to the writer."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from billing.clock import bucket_of
from billing.money import PPM
from billing.prices import Amounts, Rates, TokenCounts
from billing.principal import Principal
from billing.tables import EntryKind, EntryStatus, LedgerEntry

TOKEN_FIELDS = ("input_tokens", "cached_input_tokens", "output_tokens", "batch_input_tokens", "batch_output_tokens")
AMOUNT_FIELDS = (
    "input_amount_nano",
    "cached_input_amount_nano",
    "output_amount_nano",
    "batch_input_amount_nano",
    "batch_output_amount_nano",
    "adjustment_nano",
    "amount_nano_usd",
)
# What must agree when the same key is booked again; all else may differ between a row and its replay.
CONTENT_FIELDS = ("tenant_id", *TOKEN_FIELDS, *AMOUNT_FIELDS)
# Text that callers and upstreams have a say in, and the width of its column; ids of ours are left alone.
_WIDTHS: dict[str, int] = {
    name: cast(sa.String, LedgerEntry.__table__.columns[name].type).length or 0
    for name in (
        "endpoint",
        "model",
        "upstream",
        "upstream_model",
        "provider_id",
        "route",
        "conversation_id",
        "conversation_source",
        "end_user",
        "service_tier",
        "finish_reason",
        "error_code",
        "cache_outcome",
        "note",
    )
}


class Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One row to be. Fields are LedgerEntry's; money in nano-USD, times in microseconds.

    `priced` makes one from tokens and rates, so that amounts and their sum cannot disagree.
    """

    request_id: str
    attempt: int = 1
    kind: EntryKind = EntryKind.USAGE
    seq: int = 0
    corrects_id: int | None = None
    booked_at: datetime | None = None
    accepted_at: datetime
    tenant_id: str
    project_id: str
    key_id: str
    endpoint: str
    model: str
    upstream: str = ""
    upstream_model: str = ""
    provider_id: str | None = None
    route: str = ""
    conversation_id: str | None = None
    conversation_source: str = ""
    end_user: str | None = None
    tags: dict[str, str] = {}
    service_tier: str = "default"
    priority: int = 1
    stream: bool = False
    status: EntryStatus = EntryStatus.OK
    http_status: int = 200
    finish_reason: str | None = None
    error_code: str | None = None
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    batch_input_tokens: int = 0
    batch_output_tokens: int = 0
    reasoning_tokens: int = 0
    input_amount_nano: int = 0
    cached_input_amount_nano: int = 0
    output_amount_nano: int = 0
    batch_input_amount_nano: int = 0
    batch_output_amount_nano: int = 0
    adjustment_nano: int = 0
    amount_nano_usd: int = 0
    price_id: str | None = None
    discount_ppm: int = 0
    engine_us: int = 0
    cost_nano_usd: int = 0
    cost_version: str | None = None
    cache_outcome: str = "none"
    saved_input_tokens: int = 0
    saved_output_tokens: int = 0
    saved_nano_usd: int = 0
    ttft_us: int | None = None
    latency_us: int | None = None
    queue_us: int | None = None
    origin: str = "gateway"
    note: str | None = None

    @classmethod
    def priced(
        cls,
        *,
        request_id: str,
        principal: Principal,
        endpoint: str,
        model: str,
        accepted_at: datetime,
        tokens: TokenCounts,
        rates: Rates,
        **fields: Any,
    ) -> Entry:
        """A usage row: each token class multiplied out and rounded once. `fields` are any others of Entry's."""
        return cls(
            request_id=request_id,
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            key_id=principal.key_id,
            endpoint=endpoint,
            model=model,
            accepted_at=accepted_at,
            price_id=rates.price_id,
            discount_ppm=rates.discount_ppm,
            **_tokens(tokens),
            **_amounts(rates.amounts(tokens)),
            **fields,
        )

    @classmethod
    def cache_hit(
        cls,
        *,
        request_id: str,
        principal: Principal,
        endpoint: str,
        model: str,
        accepted_at: datetime,
        saved: TokenCounts,
        rates: Rates | None,
        cache_outcome: str,
        **fields: Any,
    ) -> Entry:
        """An answer served again: no tokens computed; charged the share of its price that `rates` say, by token class.

        `saved_*` is the rest: the tokens, and the full price less what is charged. `rates` None (no price in force any
        more, of which nothing would be charged) leaves the money at 0.
        """
        charged = rates.amounts(saved) if rates is not None else Amounts()
        full = rates.shared(PPM).amounts(saved) if rates is not None else Amounts()
        return cls(
            request_id=request_id,
            kind=EntryKind.CACHE_HIT,
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            key_id=principal.key_id,
            endpoint=endpoint,
            model=model,
            accepted_at=accepted_at,
            cache_outcome=cache_outcome,
            price_id=rates.price_id if rates else None,
            discount_ppm=rates.discount_ppm if rates else 0,
            saved_input_tokens=saved.input + saved.cached_input + saved.batch_input,
            saved_output_tokens=saved.output + saved.batch_output,
            saved_nano_usd=full.total - charged.total,
            **_amounts(charged),
            **fields,
        )

    @property
    def key(self) -> tuple[str, int, EntryKind, int]:
        """What makes it the same row when booked again."""
        return self.request_id, self.attempt, self.kind, self.seq

    @property
    def total_tokens(self) -> int:
        """Prompt and output computed: what counts against tokens per minute."""
        return sum(getattr(self, field) for field in TOKEN_FIELDS)

    def row(self, now: datetime) -> dict[str, Any]:
        """Column values; `booked_at` is now unless the journal brings one along."""
        values = msgspec.structs.asdict(self)
        for name, width in _WIDTHS.items():
            text = values[name]
            if text is not None and (len(text) > width or "\0" in text):
                # A caller's long or odd name must not make the row unbookable: PostgreSQL refuses both.
                values[name] = text.replace("\0", "")[:width]
        values["booked_at"] = self.booked_at or now
        values["bucket"] = bucket_of(self.accepted_at)
        return values


def _tokens(tokens: TokenCounts) -> dict[str, Any]:
    return {
        "input_tokens": tokens.input,
        "cached_input_tokens": tokens.cached_input,
        "output_tokens": tokens.output,
        "batch_input_tokens": tokens.batch_input,
        "batch_output_tokens": tokens.batch_output,
    }


def _amounts(amounts: Amounts) -> dict[str, Any]:
    return {
        "input_amount_nano": amounts.input,
        "cached_input_amount_nano": amounts.cached_input,
        "output_amount_nano": amounts.output,
        "batch_input_amount_nano": amounts.batch_input,
        "batch_output_amount_nano": amounts.batch_output,
        "amount_nano_usd": amounts.total,
    }
