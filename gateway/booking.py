"""Ledger rows of calls: what was used and how it ended, priced, durable when the method returns."""

from __future__ import annotations

from typing import Any

import msgspec

from billing.entry import Entry
from billing.ledger import LedgerWriter
from billing.limits.ticket import Ticket
from billing.prices import PriceBook, Rates, TokenCounts
from billing.tables import EntryStatus
from gateway.calls import Call, Counts
from gateway.routing import Route, Target


class Ending(msgspec.Struct, kw_only=True):
    """How a call ended. `target` is what generated, None for an answer from the cache. Times in seconds."""

    status: EntryStatus
    counts: Counts
    target: Target | None = None
    finish_reason: str | None = None
    cache_outcome: str = "none"
    error_code: str | None = None
    http_status: int = 200
    ttft_s: float | None = None
    latency_s: float | None = None


class Booking:
    """Writes rows through billing's ledger."""

    def __init__(self, ledger: LedgerWriter, prices: PriceBook) -> None:
        self._ledger = ledger
        self._prices = prices

    async def usage(self, ticket: Ticket, call: Call, route: Route, rates: Rates, ending: Ending) -> int:
        """A generation's row; returns its amount in nano-USD. Raises: LedgerUnavailable, LedgerConflict."""
        counts = ending.counts
        upstream = ending.target.upstream if ending.target is not None else None
        cost, cost_version = 0, None
        if upstream is not None and counts.engine_us:
            cost, cost_version = await self._prices.cost_nano_usd(upstream.name, counts.engine_us)
        entry = Entry.priced(
            request_id=call.request_id,
            principal=call.principal,
            endpoint=call.endpoint,
            model=upstream.model if upstream is not None else ticket.model,
            accepted_at=ticket.accepted_at,
            tokens=token_counts(counts, batch=call.batch),
            rates=rates,
            upstream=upstream.name if upstream is not None else "",
            upstream_model=upstream.model if upstream is not None else "",
            reasoning_tokens=min(counts.reasoning_tokens, counts.completion_tokens),
            engine_us=counts.engine_us,
            cost_nano_usd=cost,
            cost_version=cost_version,
            cache_outcome=ending.cache_outcome,
            note="usage is estimated: the upstream sent none" if counts.estimated else None,
            **_common(call, route, ending),
        )
        await self._ledger.book(entry)
        return entry.amount_nano_usd

    async def hit(
        self, ticket: Ticket, call: Call, route: Route, *, rates: Rates | None, saved: Counts, ending: Ending
    ) -> int:
        """The row of an answer served again: no tokens computed; returns what `rates` charge for it, nano-USD.

        Raises: LedgerUnavailable."""
        entry = Entry.cache_hit(
            request_id=call.request_id,
            principal=call.principal,
            endpoint=call.endpoint,
            model=ticket.model,
            accepted_at=ticket.accepted_at,
            saved=token_counts(saved, batch=call.batch),
            rates=rates,
            cache_outcome=ending.cache_outcome,
            **_common(call, route, ending),
        )
        await self._ledger.book(entry)
        return entry.amount_nano_usd


def token_counts(counts: Counts, *, batch: bool) -> TokenCounts:
    """By the classes that are priced."""
    return TokenCounts.of(
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        completion_tokens=counts.completion_tokens,
        batch=batch,
    )


def _common(call: Call, route: Route, ending: Ending) -> dict[str, Any]:
    attribution = call.attribution
    return {
        "route": route.name[:64],
        "conversation_id": attribution.conversation_id,
        "conversation_source": attribution.conversation_source,
        "end_user": attribution.end_user,
        "tags": dict(attribution.tags),
        "service_tier": call.service_tier,
        "priority": int(call.priority),
        "stream": call.stream,
        "status": ending.status,
        "http_status": ending.http_status,
        "finish_reason": ending.finish_reason,
        "error_code": ending.error_code,
        "ttft_us": _microseconds(ending.ttft_s),
        "latency_us": _microseconds(ending.latency_s),
    }


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000_000)
