"""The reaper: books and releases what a dead gateway left held, from the tokens its last heartbeat wrote down.

One reaper takes a hold (a claim with a life of its own), looks into the ledger (the row may be there: the process died
between booking and settling), books `interrupted` where it is not, then settles. Each step may be repeated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from billing.clock import Clock, utc_now
from billing.db import Database
from billing.entry import TOKEN_FIELDS, Entry
from billing.ledger import LedgerWriter
from billing.limits import stages
from billing.limits.policy import hold_key, holds_key
from billing.limits.stage import CLAIM, Stage
from billing.limits.ticket import ReaperMeta
from billing.prices import TokenCounts
from billing.tables import EntryKind, EntryStatus, LedgerEntry, Tenant

CLAIM_S = 30.0
MAX_A_PASS = 500
log = logging.getLogger(__name__)


class Reaper:
    """One a process; several may run, a hold falls to one."""

    interval_s = 2.0

    def __init__(
        self,
        redis: Redis,
        db: Database,
        ledger: LedgerWriter,
        *,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._db = db
        self._ledger = ledger
        self._clock = clock
        self._monotonic = monotonic
        self._away = False
        self._quiet_until = 0.0
        self.num_reaped = 0
        self.num_failed = 0

    async def reap(self) -> int:
        """One pass over all tenants; returns how many holds were ended. Raises: what Redis or SQL raise."""
        try:
            expired = await self._expired()
        except BaseException:
            self._away = True
            raise
        now = self._monotonic()
        if self._away:  # living owners could not renew their holds meanwhile: their heartbeats come first
            self._away, self._quiet_until = False, now + 2 * stages.HEARTBEAT_S
        if now < self._quiet_until:
            return 0
        count = 0
        for tenant_id, request_id in expired[:MAX_A_PASS]:
            try:
                count += await self.reap_one(tenant_id, request_id)
            except (SQLAlchemyError, RedisError, OSError):
                raise
            except Exception:
                # One hold that cannot be read must not keep the others; its claim runs out and it is tried again.
                log.exception("the hold of request %s could not be ended", request_id)
                self.num_failed += 1
        self.num_reaped += count
        return count

    async def _expired(self) -> list[tuple[str, str]]:
        seconds, micros = await self._redis.time()
        now_us = seconds * 1_000_000 + micros
        async with self._db.read() as session:
            tenants = list(await session.scalars(sa.select(Tenant.id)))
        found: list[tuple[str, str]] = []
        for first in range(0, len(tenants), 500):
            chunk = tenants[first : first + 500]
            pipe = self._redis.pipeline(transaction=False)
            for tenant_id in chunk:
                pipe.zrangebyscore(holds_key(tenant_id), "-inf", now_us, start=0, num=MAX_A_PASS)
            for tenant_id, ids in zip(chunk, await pipe.execute(), strict=True):
                found += ((tenant_id, id.decode() if isinstance(id, bytes) else id) for id in ids)
        return found

    async def reap_one(self, tenant_id: str, request_id: str) -> int:
        """1 when this reaper ended the hold, 0 when it was renewed, settled or another's."""
        keys = [hold_key(tenant_id, request_id), holds_key(tenant_id)]
        fields = await Stage(CLAIM, keys, [request_id, int(CLAIM_S * 1_000_000)], _pairs).run(self._redis)
        if not fields:
            return 0
        meta = msgspec.msgpack.decode(fields[b"meta"], type=ReaperMeta)
        tokens = TokenCounts.of(
            prompt_tokens=int(fields.get(b"in", 0)),
            cached_tokens=min(int(fields.get(b"cached", 0)), int(fields.get(b"in", 0))),
            completion_tokens=int(fields.get(b"out", 0)),
            batch=meta.batch,
        )
        amount, used = await self._book(meta, tokens)
        await self._settle(meta, amount, used)
        log.warning("reaped request %s: %d nano-USD booked for its last known tokens", request_id, amount)
        return 1

    async def _settle(self, meta: ReaperMeta, amount: int, tokens: int) -> None:
        tenant_id = meta.principal.tenant_id
        stage = stages.settle_keys(
            request_id=meta.request_id,
            hold=hold_key(tenant_id, meta.request_id),
            holds=holds_key(tenant_id),
            leases=meta.leases,
            budgets=meta.budgets,
            token_rates=meta.token_rates,
            amount_nano=amount,
            tokens=tokens,
            booked_ago_s=0.0,
        )
        await stage.run(self._redis)

    async def _book(self, meta: ReaperMeta, tokens: TokenCounts) -> tuple[int, int]:
        """(amount, tokens) the request stands in the ledger with, booking it as interrupted where it is missing."""
        entry = _interrupted(meta, tokens)
        entry.booked_at = self._clock()
        rows = await self._rows(meta)
        if not rows:
            # Straight into SQL, not the journal: the claim ends and the next pass repeats it when SQL is away.
            await self._ledger.write([entry])
            rows = await self._rows(meta)
        return sum(r.amount_nano_usd for r in rows), sum(getattr(r, f) for r in rows for f in TOKEN_FIELDS)

    async def _rows(self, meta: ReaperMeta) -> list[LedgerEntry]:
        async with self._db.read() as session:
            query = sa.select(LedgerEntry).where(
                LedgerEntry.request_id == meta.request_id, LedgerEntry.kind != EntryKind.ADJUSTMENT
            )
            return list(await session.scalars(query))


def _interrupted(meta: ReaperMeta, tokens: TokenCounts) -> Entry:
    """The row of a request whose end is unknown: of what it generated, or of what it was served again."""
    common: dict[str, Any] = {
        "request_id": meta.request_id,
        "attempt": meta.attempt,
        "principal": meta.principal,
        "endpoint": meta.endpoint,
        "model": meta.model,
        "upstream": meta.upstream,
        "route": meta.route,
        "service_tier": meta.service_tier,
        "stream": meta.stream,
        "conversation_id": meta.conversation_id,
        "end_user": meta.end_user,
        "tags": meta.tags,
        "accepted_at": meta.accepted_at,
        "rates": meta.rates,
        "status": EntryStatus.INTERRUPTED,
        "http_status": 0,
        "error_code": "gateway_lost",
        "origin": "reaper",
    }
    if meta.hit:
        return Entry.cache_hit(saved=tokens, cache_outcome=meta.hit, **common)
    return Entry.priced(tokens=tokens, **common)


def _pairs(reply: list[Any] | dict[Any, Any]) -> dict[bytes, bytes]:
    if isinstance(reply, dict):
        return reply
    return {reply[i]: reply[i + 1] for i in range(0, len(reply), 2)}
