"""Start budget counters from the ledger: at a window's first request, a new rule's, and after Redis lost its data."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from redis.asyncio import Redis
from sqlalchemy.exc import SQLAlchemyError

from billing.db import Database
from billing.errors import LimitsUnavailable
from billing.limits.policy import Rule
from billing.limits.stage import SEED, Argument, Stage
from billing.limits.ticket import Ticket
from billing.spend import Scope, spent_nano_usd
from billing.windows import Window

KEPT_AFTER_END = timedelta(days=3)  # late settles still find the counter; later ones find the ledger
LEDGER_TIMEOUT_S = 3.0
REDIS_TIMEOUT_S = 2.0


class Seeder:
    """One a process: of many requests that miss the same counter, one sums the ledger and the others wait for it."""

    def __init__(self, redis: Redis, db: Database) -> None:
        self._redis = redis
        self._db = db
        self._running: dict[str, asyncio.Task[None]] = {}

    async def seed(self, ticket: Ticket, which: Sequence[int]) -> None:
        """Start the counters of the ticket's budgets `which`; those that exist are left alone.

        Raises: LimitsUnavailable when the ledger cannot be read (a missing counter must not read as zero); RedisError,
        TimeoutError.
        """
        for index in which:
            rule, key = ticket.budgets[index]
            task = self._running.get(key)
            if task is None:
                window = rule.window(ticket.accepted_at, ticket.principal.time_zone)
                task = asyncio.create_task(self._start(rule, key, window))
                self._running[key] = task
                task.add_done_callback(lambda _, key=key: self._running.pop(key, None))  # type: ignore[misc]
            await asyncio.shield(task)

    async def _start(self, rule: Rule, key: str, window: Window) -> None:
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            seconds, micros = await self._redis.time()  # before the ledger is read: what is booked later is not in it
        scope = Scope(rule.scope, rule.scope_id, rule.model, window.start, window.end)
        try:
            async with asyncio.timeout(LEDGER_TIMEOUT_S), self._db.read() as session:
                (total,) = await spent_nano_usd(session, [scope])
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            raise LimitsUnavailable("budgets cannot be read from the ledger at the moment", retry_after_s=2) from exc
        life = max(window.end - datetime.fromtimestamp(seconds, UTC), timedelta(0)) + KEPT_AFTER_END
        arguments: list[Argument] = [seconds * 1_000_000 + micros, str(total), int(life.total_seconds() * 1000)]
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            await Stage(SEED, [key], arguments, int).run(self._redis)
