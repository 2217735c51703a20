"""Start budget counters from the ledger: at a window's first request, a new rule's, and after Redis lost its data."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from redis.asyncio import Redis
from sqlalchemy.exc import SQLAlchemyError

from billing.db import Database
from billing.errors import LimitsUnavailable
from billing.limits.stage import SEED, Stage
from billing.limits.ticket import Ticket
from billing.spend import Scope, spent_nano_usd

KEPT_AFTER_END = timedelta(days=3)  # late settles still find the counter; later ones find the ledger
SEED_TIMEOUT_S = 3.0
REDIS_TIMEOUT_S = 0.5


async def seed(redis: Redis, db: Database, ticket: Ticket, which: Sequence[int]) -> None:
    """Sum the ledger for the ticket's budgets `which` and start their counters; those that exist are left alone.

    Raises: LimitsUnavailable when the ledger cannot be read (a missing counter must not read as zero); RedisError,
    TimeoutError.
    """
    budgets = [ticket.budgets[index] for index in which]
    windows = [rule.window(ticket.accepted_at, ticket.principal.time_zone) for rule, _ in budgets]
    scopes = [
        Scope(rule.scope, rule.scope_id, rule.model, window.start, window.end)
        for (rule, _), window in zip(budgets, windows, strict=True)
    ]
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        seconds, micros = await redis.time()  # before the ledger is read: a row booked later is not in the sum
    try:
        async with asyncio.timeout(SEED_TIMEOUT_S), db.read() as session:
            sums = await spent_nano_usd(session, scopes)
    except (SQLAlchemyError, OSError, TimeoutError) as exc:
        raise LimitsUnavailable("budgets cannot be read from the ledger at the moment", retry_after_s=2) from exc
    arguments: list[str | bytes | int] = [seconds * 1_000_000 + micros]
    now = datetime.fromtimestamp(seconds, UTC)
    for total, window in zip(sums, windows, strict=True):
        life = max(window.end - now, timedelta(0)) + KEPT_AFTER_END
        arguments += (str(total), int(life.total_seconds() * 1000))
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        await Stage(SEED, [key for _, key in budgets], arguments, int).run(redis)
