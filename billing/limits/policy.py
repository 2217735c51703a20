"""The limits of one key for one model, compiled from the tenant's rules once and kept until they change."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from billing.bus import ChangeBus
from billing.db import Database
from billing.errors import PolicyUnavailable
from billing.principal import Principal
from billing.quotas.quota import Quota, Shape, Unit
from billing.quotas.registry import QUOTAS
from billing.tables import LimitRule
from billing.windows import Window, window_of

log = logging.getLogger(__name__)
READ_AGAIN_S = 30.0
READ_AGAIN_DEAF_S = 1.0  # while the bus is silent
MAX_TENANTS = 10_000
MAX_POLICIES = 50_000
MAX_READINGS = 3  # for one request, where changes come faster than they can be read
READ_TIMEOUT_S = 5.0
RETRY_S = 1.0


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled rule. `key` is its Redis key (budgets add their window); `model` None means all models."""

    quota: Quota
    scope: str
    scope_id: str
    model: str | None
    hard: int | None
    soft: int | None
    key: str

    @property
    def capacity(self) -> int:
        """What a rate's bucket holds: the hard limit, or the soft one where that is all there is."""
        limit = self.hard if self.hard is not None else self.soft
        assert limit is not None
        return limit

    @property
    def period_us(self) -> int:
        """A rate's period in microseconds."""
        return self.quota.period_s * 1_000_000

    def window(self, moment: datetime, time_zone: str) -> Window:
        """A budget's window at a moment."""
        return window_of(self.quota.window, moment, time_zone)

    def budget_key(self, window: Window) -> str:
        """The Redis key of a budget's counter in a window."""
        return f"{self.key}:{window.label}"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that limits one key's requests for one model, by stage."""

    admit_rates: tuple[Rule, ...]
    leases: tuple[Rule, ...]
    hold_rates: tuple[Rule, ...]
    budgets: tuple[Rule, ...]
    max_tokens: Rule | None


def tenant_tag(tenant_id: str) -> str:
    """The hash tag that keeps all keys of a tenant on one node of a Redis Cluster."""
    return f"weir:{{{tenant_id}}}"


def hold_key(tenant_id: str, request_id: str) -> str:
    """Where a request's hold lies."""
    return f"{tenant_tag(tenant_id)}:hold:{request_id}"


def holds_key(tenant_id: str) -> str:
    """The tenant's open holds by expiry."""
    return f"{tenant_tag(tenant_id)}:holds"


def compile_rule(row: LimitRule) -> Rule:
    """From its SQL row."""
    quota = QUOTAS[row.quota]
    model = row.model or None
    suffix = f":{hashlib.sha256(model.encode()).hexdigest()[:16]}" if model else ""
    letter = {Shape.RATE: "r", Shape.LEASE: "c", Shape.BUDGET: "b", Shape.BOUND: "x"}[quota.shape]
    return Rule(
        quota=quota,
        scope=row.scope_kind,
        scope_id=row.scope_id,
        model=model,
        hard=row.hard,
        soft=row.soft,
        key=f"{tenant_tag(row.tenant_id)}:{letter}:{quota.name}:{row.scope_id}{suffix}",
    )


def compile_policy(rules: list[Rule], principal: Principal, model: str) -> Policy:
    """The rules that bear on this key and model, widest scope first."""
    ids = {"tenant": principal.tenant_id, "project": principal.project_id, "key": principal.key_id}
    order = list(ids)
    mine = sorted(
        (r for r in rules if ids.get(r.scope) == r.scope_id and r.model in (None, model)),
        key=lambda r: (order.index(r.scope), r.model is not None, r.quota.name),
    )
    rates = [r for r in mine if r.quota.shape is Shape.RATE]
    bounds = [r for r in mine if r.quota.shape is Shape.BOUND and r.hard is not None]
    return Policy(
        admit_rates=tuple(r for r in rates if r.quota.unit is Unit.REQUESTS),
        hold_rates=tuple(r for r in rates if r.quota.unit is Unit.TOKENS),
        leases=tuple(r for r in mine if r.quota.shape is Shape.LEASE),
        budgets=tuple(r for r in mine if r.quota.shape is Shape.BUDGET),
        max_tokens=min(bounds, key=lambda r: r.capacity) if bounds else None,
    )


class _Rules(msgspec.Struct):
    """`stale`: a change has come since the reading of these began."""

    rules: list[Rule]
    read_at: float
    stale: bool = False


class PolicyStore:
    """Rules by tenant in memory, bounded; while SQL is away the last reading serves."""

    def __init__(
        self, db: Database, *, bus: ChangeBus | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._db = db
        self._bus = bus
        self._monotonic = monotonic
        self._tenants: OrderedDict[str, _Rules] = OrderedDict()
        self._policies: OrderedDict[tuple[str, str], tuple[_Rules, Principal, Policy]] = OrderedDict()
        self._reading: dict[str, asyncio.Task[_Rules]] = {}
        self._missed: set[str] = set()  # tenants of whom a change came while their rules were being read
        if bus is not None:
            bus.listen(self._on_change)

    async def policy(self, principal: Principal, model: str) -> Policy:
        """Raises: PolicyUnavailable when the tenant's rules could not be read even once."""
        rules = self._tenants.get(principal.tenant_id)
        if rules is None or rules.stale or self._monotonic() - rules.read_at >= self._ttl():
            rules = await self._read(principal.tenant_id)
        cached = self._policies.get((principal.key_id, model))
        if cached is not None and cached[0] is rules and cached[1] is principal:
            return cached[2]
        policy = compile_policy(rules.rules, principal, model)
        self._policies[principal.key_id, model] = (rules, principal, policy)
        self._policies.move_to_end((principal.key_id, model))
        while len(self._policies) > MAX_POLICIES:
            self._policies.popitem(last=False)
        return policy

    def _ttl(self) -> float:
        return READ_AGAIN_S if self._bus is None or self._bus.connected else READ_AGAIN_DEAF_S

    async def _read(self, tenant_id: str) -> _Rules:
        """Joins the reading that is under way; who came after a change that it may have missed waits for another."""
        for _ in range(MAX_READINGS):
            rules = await self._joined(tenant_id)
            if not rules.stale:
                break
        return rules

    async def _joined(self, tenant_id: str) -> _Rules:
        task = self._reading.get(tenant_id)
        if task is None:
            task = asyncio.create_task(self._load(tenant_id))
            self._reading[tenant_id] = task
            task.add_done_callback(lambda _: self._reading.pop(tenant_id, None))
        try:
            return await asyncio.shield(task)
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            old = self._tenants.get(tenant_id)
            if old is None:
                raise PolicyUnavailable("limits cannot be read at the moment; try again") from exc
            log.warning("limits could not be read again (%s); the last ones hold meanwhile", type(exc).__name__)
            # Not at every request, but soon: what changed is in force already.
            old.read_at, old.stale = self._monotonic() - self._ttl() + RETRY_S, False
            return old

    async def _load(self, tenant_id: str) -> _Rules:
        started = self._monotonic()
        self._missed.discard(tenant_id)
        async with asyncio.timeout(READ_TIMEOUT_S), self._db.read() as session:
            rows = await session.scalars(sa.select(LimitRule).where(LimitRule.tenant_id == tenant_id))
            rules = [compile_rule(row) for row in rows if row.quota in QUOTAS]
        fresh = _Rules(rules, started, stale=tenant_id in self._missed)
        self._tenants[tenant_id] = fresh
        self._tenants.move_to_end(tenant_id)
        while len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
        return fresh

    def _on_change(self, kind: str, id: str) -> None:
        if kind not in ("limits", "all"):
            return
        everybody = kind == "all"
        self._missed.update(self._reading if everybody else {id} & self._reading.keys())
        for tenant_id in tuple(self._tenants) if everybody else {id} & self._tenants.keys():
            self._tenants[tenant_id].stale = True
