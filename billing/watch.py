"""What turns into alerts: limits reached, budgets that will not last, books that disagree."""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from redis.asyncio import Redis

from billing.alerts import AlertKind, Delivery, deliver_due, raise_alert
from billing.clock import Clock, utc_now
from billing.db import Database
from billing.entry import Entry
from billing.limits.admission import LimitEvent
from billing.limits.policy import Rule, compile_rule
from billing.money import format_usd
from billing.quotas.quota import Shape
from billing.quotas.registry import QUOTAS
from billing.reconcile import Reconciler
from billing.secrets import ServerSecret
from billing.spend import Scope, spent_nano_usd
from billing.tables import LimitRule, Tenant
from billing.windows import Window

MAX_KNOWN = 10_000
FORECAST_AFTER = 0.1  # of the window: earlier, a single request would forecast anything
log = logging.getLogger(__name__)


class _News(msgspec.Struct, frozen=True):
    kind: AlertKind
    once: str
    tenant_id: str | None
    detail: dict[str, Any]


class Watcher:
    """Hears of events on the request path (cheap, in memory) and tells them from a task of its own."""

    interval_s = 1.0
    look_every_s = 600.0

    def __init__(
        self,
        db: Database,
        redis: Redis,
        secret: ServerSecret,
        reconciler: Reconciler,
        *,
        deliver: Delivery | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._db = db
        self._redis = redis
        self._secret = secret
        self._reconciler = reconciler
        self._deliver = deliver
        self._clock = clock
        self._news: OrderedDict[str, _News] = OrderedDict()
        self._told: OrderedDict[str, None] = OrderedDict()

    def on_limit(self, event: LimitEvent) -> None:
        """From admission: a soft or hard limit was reached."""
        rule = event.rule
        kind = AlertKind.SOFT_LIMIT if event.kind == "soft" else AlertKind.HARD_LIMIT
        span = event.window.label if event.window is not None else f"{self._clock():%Y-%m-%dT%H}"  # rates: hourly
        detail = {**_describe(rule), "window": span}
        self._add(_News(kind, f"{kind}:{rule.key}:{span}", event.tenant_id, detail))

    def on_conflict(self, entry: Entry) -> None:
        """From the ledger: a row came again with another content."""
        once = f"{AlertKind.LEDGER_CONFLICT}:{entry.request_id}:{entry.attempt}:{entry.kind}:{entry.seq}"
        self._add(_News(AlertKind.LEDGER_CONFLICT, once, None, {"request_id": entry.request_id}))

    def _add(self, news: _News) -> None:
        if news.once in self._told or news.once in self._news or len(self._news) >= MAX_KNOWN:
            return
        self._news[news.once] = news

    async def tell(self) -> int:
        """Raise what was heard and deliver what is due; returns how many alerts were new."""
        new = 0
        while self._news:
            once, news = next(iter(self._news.items()))
            new += await raise_alert(
                self._db, news.kind, once=once, tenant_id=news.tenant_id, detail=news.detail, clock=self._clock
            )
            self._news.pop(once, None)
            self._told[once] = None
            while len(self._told) > MAX_KNOWN:
                self._told.popitem(last=False)
        if self._deliver is not None:
            await deliver_due(self._db, self._secret, self._deliver, clock=self._clock)
        return new

    async def look(self) -> None:
        """Every ten minutes: which budgets will not last their window, and do the books agree?"""
        for event in await self.forecasts():
            self._add(event)
        found = await self._reconciler.check()
        if found.counters_wrong or found.buckets_wrong or found.rows_not_adding_up or found.orphan_corrections:
            detail = {
                "counters": len(found.counters_wrong),
                "buckets": len(found.buckets_wrong),
                "rows": found.rows_not_adding_up + found.orphan_corrections,
            }
            once = f"{AlertKind.LEDGER_DRIFT}:{self._clock():%Y-%m-%dT%H}"
            self._add(_News(AlertKind.LEDGER_DRIFT, once, None, detail))

    async def forecasts(self) -> list[_News]:
        """Hard budgets whose spending, going on as so far, ends before their window does."""
        now = self._clock()
        news = []
        async with self._db.read() as session:
            query = sa.select(LimitRule, Tenant.time_zone).join(Tenant, Tenant.id == LimitRule.tenant_id)
            rows = (await session.execute(query.where(LimitRule.hard.is_not(None)))).all()
            for row, zone in rows:
                if row.quota not in QUOTAS or QUOTAS[row.quota].shape is not Shape.BUDGET:
                    continue
                rule = compile_rule(row)
                window = rule.window(now, zone)
                scope = Scope(rule.scope, rule.scope_id, rule.model, window.start, window.end)
                (spent,) = await spent_nano_usd(session, [scope])
                exhausted = exhausted_at(spent, rule.capacity, window, now)
                if exhausted is not None:
                    detail = {**_describe(rule), "window": window.label, "exhausted_at": exhausted.isoformat()}
                    detail |= {"spent_usd": format_usd(spent), "budget_usd": format_usd(rule.capacity)}
                    once = f"{AlertKind.BUDGET_FORECAST}:{rule.key}:{window.label}"
                    news.append(_News(AlertKind.BUDGET_FORECAST, once, row.tenant_id, detail))
        return news


def exhausted_at(spent: int, budget: int, window: Window, now: datetime) -> datetime | None:
    """When a budget runs out at the mean rate so far; None when it lasts, is gone, or it is too early to say."""
    elapsed, length = now - window.start, window.end - window.start
    if spent <= 0 or spent >= budget or elapsed < length * FORECAST_AFTER:
        return None
    moment = window.start + elapsed * (budget / spent)  # a forecast: the only division of money by a float
    return moment if moment < window.end else None


def _describe(rule: Rule) -> dict[str, Any]:
    return {"scope": rule.scope, "scope_id": rule.scope_id, "model": rule.model, "quota": rule.quota.name}
