"""Compare ledger, roll-ups, Redis counters and journal; repair derived state only, never the ledger.

Under load a counter is read between a row's booking and its settling; a drift counts only when it stays the same over
several readings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec
import sqlalchemy as sa
from redis.asyncio import Redis

from billing import rollups
from billing.clock import Clock, utc_now
from billing.db import Database
from billing.journal import Journal
from billing.ledger import LedgerWriter
from billing.limits.policy import Rule, compile_rule, hold_key, holds_key
from billing.limits.reaper import Reaper
from billing.limits.stage import MOVE, Stage
from billing.limits.ticket import ReaperMeta
from billing.quotas.quota import Shape
from billing.quotas.registry import QUOTAS
from billing.rollups import (
    BY_MODEL,
    DAY_S,
    DIMENSIONS,
    SPAN_S,
    SUMS,
    ledger_as_rollup,
    rollup_by_day,
    rollup_by_model,
    rollup_by_span,
    start_of,
)
from billing.spend import Scope, spent_nano_usd
from billing.tables import (
    LedgerEntry,
    LimitRule,
    RollupDay,
    RollupMark,
    Tenant,
    UsageByDay,
    UsageByModel,
    UsageBySpan,
    UsageRollup,
)
from billing.windows import Window

READINGS = 3
READ_AGAIN_S = 0.3
REAPED_WITHIN_S = 10.0  # of a hold's end: reapers look every two seconds, and what they are about to take is no drift


class CounterDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A budget's counter that disagrees. `committed` is used - held, in nano-USD.

    `drift` = committed - (ledger - rows of requests that are booked but have not settled).

    `held_drift` = the counter's held - the sum of the open holds on it.
    """

    key: str
    tenant_id: str
    scope: str
    scope_id: str
    quota: str
    committed: int
    ledger: int
    drift: int
    held_drift: int


class _OnBudget(msgspec.Struct):
    """What open holds keep on one budget, and how much of their rows is in the ledger already."""

    held: int = 0
    booked: int = 0


class Findings(msgspec.Struct, kw_only=True):
    """What the books disagree in. `clean`: nothing does and nothing waits."""

    buckets_compared: int = 0
    buckets_wrong: list[int] = []
    counters_compared: int = 0
    counters_wrong: list[CounterDrift] = []
    open_holds: int = 0
    expired_holds: int = 0
    journal_files: int = 0
    rows_not_adding_up: int = 0
    orphan_corrections: int = 0

    @property
    def clean(self) -> bool:
        """True when everything agrees, no hold is overdue and the journal is empty."""
        return not (
            self.buckets_wrong
            or self.counters_wrong
            or self.expired_holds
            or self.journal_files
            or self.rows_not_adding_up
            or self.orphan_corrections
        )


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """What `repair` did."""

    rows_replayed: int
    holds_reaped: int
    buckets_rewritten: int
    counters_moved: int


class Reconciler:
    """Over the same stores as the gateways; may run while they serve."""

    def __init__(
        self,
        db: Database,
        redis: Redis,
        journal: Journal,
        *,
        clock: Clock = utc_now,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._db = db
        self._redis = redis
        self._journal = journal
        self._clock = clock
        self._pause = pause

    async def check(self) -> Findings:
        """Compare everything, change nothing."""
        found = Findings(journal_files=self._journal.num_files())
        await self._check_rows(found)
        await self._check_rollups(found)
        await self._check_holds(found)
        await self._check_counters(found)
        return found

    async def raise_counters(self) -> int:
        """Move counters that are behind the ledger up to it; returns how many.

        What the gateways do by themselves after Redis was away or the journal was replayed: a counter seeded while
        rows lay in somebody's journal lacks them.
        """
        found = Findings()
        await self._check_counters(found)
        return await self._move(found, raise_only=True)

    async def repair(self, ledger: LedgerWriter, reaper: Reaper) -> Repairs:
        """Replay the journal, reap what is overdue, rewrite wrong buckets, move wrong counters to the ledger's sum."""
        replayed = await ledger.replay()
        reaped = await reaper.reap()
        rewritten = await rollups.refresh(self._db)
        found = Findings()
        await self._check_rollups(found)
        if found.buckets_wrong:
            async with self._db.begin() as session:
                await rollups.rewrite(session, found.buckets_wrong)
        await self._check_counters(found)
        moved = await self._move(found, raise_only=False)
        return Repairs(
            rows_replayed=replayed,
            holds_reaped=reaped,
            buckets_rewritten=rewritten + len(found.buckets_wrong),
            counters_moved=moved,
        )

    async def _move(self, found: Findings, *, raise_only: bool) -> int:
        """By difference, not to a value: requests that settle meanwhile keep their place."""
        moved = 0
        for wrong in found.counters_wrong:
            held = 0 if raise_only else -wrong.held_drift
            used = held - wrong.drift if wrong.drift < 0 or not raise_only else 0
            if used or held:
                moved += await Stage(MOVE, [wrong.key], [str(used), str(held)], int).run(self._redis)
        return moved

    async def _check_rows(self, found: Findings) -> None:
        """The database's own CHECKs hold these; asked again, because a restore may have come from anywhere."""
        parts = (
            LedgerEntry.input_amount_nano
            + LedgerEntry.cached_input_amount_nano
            + LedgerEntry.output_amount_nano
            + LedgerEntry.batch_input_amount_nano
            + LedgerEntry.batch_output_amount_nano
            + LedgerEntry.adjustment_nano
        )
        corrected = sa.select(LedgerEntry.id)
        async with self._db.read() as session:
            found.rows_not_adding_up = (
                await session.scalar(sa.select(sa.func.count()).where(LedgerEntry.amount_nano_usd != parts)) or 0
            )
            found.orphan_corrections = (
                await session.scalar(
                    sa.select(sa.func.count()).where(
                        LedgerEntry.corrects_id.is_not(None), LedgerEntry.corrects_id.not_in(corrected)
                    )
                )
                or 0
            )

    async def _check_rollups(self, found: Findings) -> None:
        """Both ways of EXCEPT over the buckets that claim to be clean; then what is derived of them. One snapshot."""
        marked = sa.select(RollupMark.bucket)
        marked_spans = sa.select(start_of(RollupMark.bucket, SPAN_S))
        marked_days = sa.select(start_of(RollupMark.bucket, DAY_S))
        day = start_of(UsageRollup.bucket, DAY_S)
        pairs = (
            (_all_of(UsageRollup, DIMENSIONS).where(UsageRollup.bucket.not_in(marked)),
             ledger_as_rollup().where(LedgerEntry.bucket.not_in(marked))),
            (_all_of(UsageByModel, BY_MODEL).where(UsageByModel.bucket.not_in(marked)),
             rollup_by_model().where(UsageRollup.bucket.not_in(marked))),
            (_all_of(UsageBySpan, BY_MODEL).where(UsageBySpan.bucket.not_in(marked_spans)),
             rollup_by_span().where(start_of(UsageByModel.bucket, SPAN_S).not_in(marked_spans))),
            (_all_of(UsageByDay, DIMENSIONS).where(UsageByDay.bucket.not_in(marked_days)),
             rollup_by_day().where(day.in_(sa.select(RollupDay.day)), day.not_in(marked_days))),
        )  # fmt: skip
        wrong: set[int] = set()
        async with self._db.read() as session:
            if self._db.dialect == "postgresql":
                await session.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            for stored, derived in pairs:
                for left, right in ((stored, derived), (derived, stored)):
                    difference = sa.except_(left, right).subquery()
                    wrong.update(await session.scalars(sa.select(difference.c.bucket).distinct()))
            count = sa.select(sa.func.count(sa.distinct(UsageRollup.bucket)))
            found.buckets_compared = await session.scalar(count) or 0
        found.buckets_wrong = sorted(wrong)

    async def _check_holds(self, found: Findings) -> None:
        seconds, micros = await self._redis.time()
        for tenant_id in await self._tenants():
            found.open_holds += await self._redis.zcard(holds_key(tenant_id))
            late = seconds * 1_000_000 + micros - int(REAPED_WITHIN_S * 1_000_000)
            found.expired_holds += await self._redis.zcount(holds_key(tenant_id), "-inf", late)

    async def _check_counters(self, found: Findings) -> None:
        first = await self._drifts(found)
        for _ in range(READINGS - 1):
            if not first:
                break
            await self._pause(READ_AGAIN_S)
            again = await self._drifts(found)
            first = {
                key: drift
                for key, drift in first.items()
                if key in again and (again[key].drift, again[key].held_drift) == (drift.drift, drift.held_drift)
            }
        found.counters_wrong = list(first.values())

    async def _drifts(self, found: Findings) -> dict[str, CounterDrift]:
        drifts: dict[str, CounterDrift] = {}
        compared = 0
        now = self._clock()
        for tenant_id, time_zone, budgets in await self._budgets():
            holds = await self._holds(tenant_id)
            for rule in budgets:
                drift = await self._drift(tenant_id, rule, rule.window(now, time_zone), holds)
                compared += drift is not None
                if drift is not None and (drift.drift or drift.held_drift):
                    drifts[drift.key] = drift
        found.counters_compared = compared
        return drifts

    async def _drift(
        self, tenant_id: str, rule: Rule, window: Window, holds: dict[str, _OnBudget]
    ) -> CounterDrift | None:
        """None where the counter has not been started: it will be, from the ledger."""
        key = rule.budget_key(window)
        counter = await self._redis.hmget(key, ["used", "held"])
        if counter[0] is None:
            return None
        scope = Scope(rule.scope, rule.scope_id, rule.model, window.start, window.end)
        async with self._db.read() as session:
            (spent,) = await spent_nano_usd(session, [scope])
        on_budget = holds.get(key, _OnBudget())
        committed = int(counter[0]) - int(counter[1] or 0)
        return CounterDrift(
            key=key,
            tenant_id=tenant_id,
            scope=rule.scope,
            scope_id=rule.scope_id,
            quota=rule.quota.name,
            committed=committed,
            ledger=spent,
            drift=committed - (spent - on_budget.booked),
            held_drift=int(counter[1] or 0) - on_budget.held,
        )

    async def _holds(self, tenant_id: str) -> dict[str, _OnBudget]:
        """The tenant's open holds by budget key, with what is booked of them already: it settles in a moment."""
        sums: dict[str, _OnBudget] = {}
        owners: dict[str, list[str]] = {}
        for raw in cast(list[bytes], await self._redis.zrange(holds_key(tenant_id), 0, -1)):
            request_id = raw.decode()
            key = hold_key(tenant_id, request_id)
            amount, meta = cast(list[bytes | None], await self._redis.hmget(key, ["amount", "meta"]))
            if amount is None or meta is None:
                continue
            owners[request_id] = msgspec.msgpack.decode(meta, type=ReaperMeta).budgets
            for budget in owners[request_id]:
                sums.setdefault(budget, _OnBudget()).held += int(amount)
        ids = list(owners)
        async with self._db.read() as session:
            for first in range(0, len(ids), 500):
                query = sa.select(LedgerEntry.request_id, LedgerEntry.amount_nano_usd).where(
                    LedgerEntry.request_id.in_(ids[first : first + 500])
                )
                for request_id, amount_nano in await session.execute(query):
                    for budget in owners[request_id]:
                        sums[budget].booked += amount_nano
        return sums

    async def _tenants(self) -> list[str]:
        async with self._db.read() as session:
            return list(await session.scalars(sa.select(Tenant.id)))

    async def _budgets(self) -> list[tuple[str, str, list[Rule]]]:
        """(tenant, time zone, its budget rules) of every tenant that has any."""
        async with self._db.read() as session:
            query = sa.select(LimitRule, Tenant.time_zone).join(Tenant, Tenant.id == LimitRule.tenant_id)
            rows = (await session.execute(query)).all()
        grouped: dict[tuple[str, str], list[Rule]] = {}
        for row, zone in rows:
            if row.quota in QUOTAS and QUOTAS[row.quota].shape is Shape.BUDGET:
                grouped.setdefault((row.tenant_id, zone), []).append(compile_rule(row))
        return [(tenant, zone, rules) for (tenant, zone), rules in grouped.items()]


def _all_of(table: type[UsageRollup | UsageByModel | UsageBySpan | UsageByDay], keys: Sequence[str]) -> sa.Select[Any]:
    return sa.select(*(getattr(table, name) for name in (*keys, "requests", *SUMS)))
