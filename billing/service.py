"""Billing put together for one process: open it, start it, use its parts, stop it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from redis.asyncio import Redis
from sqlalchemy.exc import SQLAlchemyError

from billing import rollups
from billing.alerts import Delivery
from billing.auth import Authenticator
from billing.bus import ChangeBus
from billing.clock import Clock, utc_now
from billing.db import Database
from billing.errors import Invalid
from billing.journal import Journal
from billing.ledger import COMMIT_DEADLINE_S, LedgerWriter
from billing.limits.admission import Admission, LimitEvent
from billing.limits.policy import PolicyStore
from billing.limits.reaper import Reaper
from billing.prices import PriceBook
from billing.reconcile import Reconciler
from billing.secrets import ServerSecret
from billing.watch import Watcher

ROLL_EVERY_S = 10.0
LOOK_BACK_S = 2.0
FLUSH_LAST_USED_S = 60.0
log = logging.getLogger(__name__)


class BillingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`journal` is a folder of its own; `replicas` how many gateways share the limits while Redis is away."""

    database_url: str
    journal: Path
    replicas: int = 1
    commit_deadline_s: float = COMMIT_DEADLINE_S
    redis_deadline_s: float = 0.1
    pool_size: int = 5


class Billing:
    """Everything of billing that a gateway uses, over one database, one Redis and one server secret.

    `db` and the functions of `tenants`, `keys`, `prices`, `limits.rules` administer; `auth`, `admission`, `prices`,
    `ledger` serve requests; `bus` carries changes between gateways; `reconciler` compares the books. `deliver` posts
    webhooks (None: alerts are logged only). The Redis client must not decode responses.
    """

    def __init__(
        self,
        settings: BillingSettings,
        redis: Redis,
        secret: ServerSecret,
        *,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
        deliver: Delivery | None = None,
    ) -> None:
        self.settings = settings
        self._limit_listeners: list[Callable[[LimitEvent], None]] = []
        self._clock = clock
        self.redis = redis
        self.secret = secret
        self.db = Database(settings.database_url, pool_size=settings.pool_size)
        self.bus = ChangeBus(redis)
        self.db.publish = self.bus.publish
        self.auth = Authenticator(self.db, secret, bus=self.bus, clock=clock, monotonic=monotonic)
        self.prices = PriceBook(self.db, bus=self.bus, clock=clock, monotonic=monotonic)
        self.reconciler = Reconciler(self.db, redis, journal := Journal(settings.journal), clock=clock)
        self.watcher = Watcher(self.db, redis, secret, self.reconciler, deliver=deliver, clock=clock)
        self.policies = PolicyStore(self.db, bus=self.bus, monotonic=monotonic)
        self.journal = journal
        self.ledger = LedgerWriter(
            self.db,
            journal,
            deadline_s=settings.commit_deadline_s,
            clock=clock,
            on_conflict=self.watcher.on_conflict,
        )
        self.admission = Admission(
            redis,
            self.policies,
            self.db,
            clock=clock,
            monotonic=monotonic,
            replicas=lambda: settings.replicas,
            on_limit=self._limit_reached,
            deadline_s=settings.redis_deadline_s,
        )
        self.reaper = Reaper(redis, self.db, self.ledger, clock=clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._outages_seen = (0, 0)

    def _limit_reached(self, event: LimitEvent) -> None:
        self.watcher.on_limit(event)
        for listener in self._limit_listeners:
            listener(event)

    def on_limit(self, listener: Callable[[LimitEvent], None]) -> None:
        """Call `listener` whenever this process sees a limit reached; it must not block or raise."""
        self._limit_listeners.append(listener)

    async def start(self) -> None:
        """Begin listening, committing, heartbeats, reaping and rolling up. Raises: Invalid for an evicting Redis."""
        await refuse_evicting_redis(self.redis)
        with contextlib.suppress(SQLAlchemyError, OSError):  # SQL is away: the first request tries again
            await self.prices.refresh()  # else the first burst of requests waits for one reading
        self.bus.start()
        self.ledger.start()
        self.admission.start()
        self._tasks = [
            asyncio.create_task(self._every(self.reaper.interval_s, self.reaper.reap), name="billing-reaper"),
            asyncio.create_task(self._every(self.watcher.interval_s, self.watcher.tell), name="billing-alerts"),
            asyncio.create_task(self._every(self.watcher.look_every_s, self.watcher.look), name="billing-watch"),
            asyncio.create_task(self._every(LOOK_BACK_S, self._after_outage), name="billing-after-outage"),
            asyncio.create_task(self._every(ROLL_EVERY_S, self._roll), name="billing-rollups"),
            asyncio.create_task(self._every(FLUSH_LAST_USED_S, self.auth.flush_last_used), name="billing-last-used"),
        ]

    async def stop(self) -> None:
        """End in order: no new holds, every row durable, then the connections."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        await self.admission.stop()
        await self.ledger.stop()
        with contextlib.suppress(Exception):
            await self.auth.flush_last_used()
        await self.journal.close()
        await self.bus.stop()
        await self.db.close()

    async def _after_outage(self) -> None:
        """Once Redis is back or a journal was replayed, counters may lack rows: raise them."""
        seen = (self.ledger.counters.replayed, self.admission.num_outages)
        if seen == self._outages_seen or self.admission.degraded:
            return
        await self.reconciler.raise_counters()
        self._outages_seen = seen

    async def _roll(self) -> int:
        return await rollups.refresh(self.db, clock=self._clock)

    async def _every(self, interval_s: float, act: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await act()  # type: ignore[misc]
            except Exception as exc:  # noqa: BLE001  a supervisor: SQL or Redis is away; the next round tries again
                log.warning("%s failed: %s", getattr(act, "__qualname__", act), type(exc).__name__)


async def refuse_evicting_redis(redis: Redis) -> None:
    """A Redis that may evict would forget what was spent.

    Raises: Invalid when it has a memory limit and a policy other than noeviction. A server that refuses CONFIG (a
    managed one) is believed, with a warning.
    """
    try:
        answer = await redis.config_get("maxmemory*")
    except Exception as exc:  # noqa: BLE001  redis-py raises ResponseError or NoPermissionError by server
        log.warning("limits: this Redis does not tell its eviction policy (%s)", type(exc).__name__)
        return
    config = {_text(key): _text(value) for key, value in answer.items()}
    policy = config.get("maxmemory-policy", "noeviction")
    if policy != "noeviction" and config.get("maxmemory", "0") != "0":
        raise Invalid(
            f"limits_redis_url: maxmemory-policy is {policy!r}, which would evict counters and holds; use 'noeviction'",
            param="limits_redis_url",
        )


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
