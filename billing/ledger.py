"""Booking: a row is durable when `LedgerWriter.book` returns. SQL by group commit within 25 ms, else the journal.

Idempotent by (request_id, attempt, kind, seq): the same row again is a no-op, one with another content an alarm. One
exception: when a request was booked without its end (interrupted, by the reaper or as a batch's line at a gateway's
stop; failed without a token, as a line that is asked again) and its real end turns up later, the difference is booked
as a correction that names the first row.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from billing.clock import Clock, utc_now
from billing.db import Database
from billing.deadline import SharedDeadlines
from billing.entry import AMOUNT_FIELDS, CONTENT_FIELDS, TOKEN_FIELDS, Entry
from billing.errors import LedgerConflict, LedgerUnavailable
from billing.journal import Journal
from billing.sinks import sink_for
from billing.tables import EntryKind, EntryStatus, LedgerEntry, RollupMark

COMMIT_DEADLINE_S = 0.025
COMMIT_SLICE_S = 0.005
COMMIT_TIMEOUT_S = 5.0  # a group whose commit hangs longer is given up; its rows are in the journal by then
MAX_GROUP = 500
REPLAY_EVERY_S = 1.0
_KEY = ("request_id", "attempt", "kind", "seq")
log = logging.getLogger(__name__)


class Booked(msgspec.Struct, frozen=True):
    """Where the row became durable: `sql` or `journal`. `duplicate`: it was there already."""

    path: str
    duplicate: bool = False


class LedgerCounters(msgspec.Struct):
    """For metrics; they only grow."""

    booked_sql: int = 0
    booked_journal: int = 0
    duplicates: int = 0
    conflicts: int = 0
    corrections: int = 0
    replayed: int = 0
    groups: int = 0


class _Waiting(msgspec.Struct):
    entry: Entry
    done: asyncio.Future[bool | LedgerConflict]
    abandoned: bool = False


class LedgerWriter:
    """One a process. `deadline_s` is how long SQL has before the journal takes the row (0: the journal always)."""

    def __init__(
        self,
        db: Database,
        journal: Journal,
        *,
        deadline_s: float | Callable[[], float] = COMMIT_DEADLINE_S,
        clock: Clock = utc_now,
        on_conflict: Callable[[Entry], None] = lambda _: None,
    ) -> None:
        self._db = db
        self._journal = journal
        self._sink = sink_for(db.engine)
        self._deadline = deadline_s if callable(deadline_s) else lambda: deadline_s
        self._clock = clock
        self._on_conflict = on_conflict
        self._queue: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._deadlines = SharedDeadlines(COMMIT_SLICE_S)
        self._tasks: list[asyncio.Task[None]] = []
        self.counters = LedgerCounters()

    @property
    def num_journalled(self) -> int:
        """Rows this process put into the journal that are not in SQL yet."""
        return self._journal.num_pending

    def start(self) -> None:
        """Begin committing and replaying in tasks of the running loop."""
        self._tasks = [
            asyncio.create_task(self._commit_forever(), name="ledger-commit"),
            asyncio.create_task(self._replay_forever(), name="ledger-replay"),
        ]

    async def stop(self) -> None:
        """Commit what waits, replay what SQL will take, and end."""
        for _ in range(200):
            if not self._queue:
                break
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        self._deadlines.close()
        with contextlib.suppress(SQLAlchemyError, OSError, TimeoutError):
            await self.replay()
        await self._sink.close()

    async def book(self, entry: Entry) -> Booked:
        """Make the row durable. Once this returns, the frame that ends the answer may go out.

        Raises: LedgerConflict; LedgerUnavailable when neither SQL nor the journal took it.
        """
        entry.booked_at = entry.booked_at or self._clock()
        deadline_s = self._deadline()
        if deadline_s > 0 and self._tasks:
            waiting = _Waiting(entry, asyncio.get_running_loop().create_future())
            self._queue.append(waiting)
            self._wake.set()
            self._deadlines.watch(waiting.done, deadline_s)
            try:
                result = await waiting.done
            except (SQLAlchemyError, OSError, TimeoutError):
                waiting.abandoned = True
            else:
                if isinstance(result, LedgerConflict):
                    raise result
                self.counters.booked_sql += 1
                return Booked("sql", duplicate=not result)
        try:
            await self._journal.append(entry)
        except OSError as exc:
            log.critical("neither SQL nor the journal took the row of request %s: %s", entry.request_id, exc)
            raise LedgerUnavailable("the answer cannot be booked at the moment; try again") from exc
        self.counters.booked_journal += 1
        return Booked("journal")

    # --- group commit --------------------------------------------------------------------------------------------

    async def _commit_forever(self) -> None:
        """While one group commits the next gathers: no timer, and one fsync for as many as came in meanwhile."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                group = [w for w in self._queue[:MAX_GROUP] if not w.abandoned]
                del self._queue[:MAX_GROUP]
                if group:
                    await self._commit(group)

    async def _commit(self, group: list[_Waiting]) -> None:
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                results = await self.write([w.entry for w in group])
        except (DataError, IntegrityError) as exc:
            if len(group) > 1:  # one row the database will not have must not take the others along
                for waiting in group:
                    await self._commit([waiting])
                return
            self._refuse(group[0], exc)
            return
        except Exception as exc:  # noqa: BLE001  whatever it was, the journal takes the rows and the loop goes on
            log.warning("a group of %d rows was not committed: %s", len(group), type(exc).__name__)
            failure = exc if isinstance(exc, SQLAlchemyError | OSError | TimeoutError) else OSError(str(exc))
            for waiting in group:
                if not waiting.done.done():
                    waiting.done.set_exception(failure)
                    waiting.done.exception()  # the waiter may have gone to the journal: no "never retrieved" warning
            return
        self.counters.groups += 1
        for waiting, result in zip(group, results, strict=True):
            if not waiting.done.done():
                waiting.done.set_result(result)

    def _refuse(self, waiting: _Waiting, exc: Exception) -> None:
        _log_refused(waiting.entry, exc)
        if not waiting.done.done():
            waiting.done.set_exception(exc)
            waiting.done.exception()

    async def write(self, entries: Sequence[Entry]) -> list[bool | LedgerConflict]:
        """Insert in one transaction. For each: True inserted, False already there, or the conflict (an alarm)."""
        now = self._clock()
        inserted = await self._sink.insert([entry.row(now) for entry in entries])
        if all(inserted):
            return list(inserted)
        async with self._db.begin() as session:
            return [
                True if fresh else await self._compare(session, entry)
                for entry, fresh in zip(entries, inserted, strict=True)
            ]

    async def _compare(self, session: AsyncSession, entry: Entry) -> bool | LedgerConflict:
        existing = await find_entry(session, entry)
        assert existing is not None
        if all(getattr(existing, field) == getattr(entry, field) for field in CONTENT_FIELDS):
            self.counters.duplicates += 1
            return False
        # A batch's line is asked again under its id after its gateway's stop, or after a refusal that cost nothing.
        unused = existing.status is EntryStatus.FAILED and not any(getattr(existing, f) for f in TOKEN_FIELDS)
        has_open_end = entry.tenant_id == existing.tenant_id and (unused or existing.status is EntryStatus.INTERRUPTED)
        if has_open_end and entry.status in (EntryStatus.INTERRUPTED, existing.status):
            return False  # its real end is still to come
        if has_open_end and entry.origin == "gateway":
            correction = correct(existing, entry)
            await insert_entries(session, [correction.row(self._clock())], self._db.dialect)
            self.counters.corrections += 1
            return False
        if entry.origin == "reaper":  # the real end was booked first: it stands
            return False
        self.counters.conflicts += 1
        log.error(
            "ledger conflict: request %s attempt %d %s %d is booked with other tokens or amounts",
            entry.request_id,
            entry.attempt,
            entry.kind,
            entry.seq,
        )
        self._on_conflict(entry)
        return LedgerConflict(f"request {entry.request_id} is booked with another content")

    # --- replay --------------------------------------------------------------------------------------------------

    async def _replay_forever(self) -> None:
        delay = 0.0  # at once at the start: a dead process may have left rows
        while True:
            await asyncio.sleep(delay)
            try:
                await self.replay()
                delay = REPLAY_EVERY_S
            except Exception as exc:  # noqa: BLE001  a supervisor: SQL is away, or a file is odd; try again
                log.warning("the journal was not replayed: %s", type(exc).__name__)
                delay = min(5.0, delay * 2 + 0.5)

    async def replay(self) -> int:
        """Book what lies in the journal, of this process and of dead ones; returns how many rows were read."""
        if not self._journal.num_files():
            return 0
        started = time.monotonic()
        files = await self._journal.take()
        count = 0
        try:
            for file in files:
                entries = await asyncio.to_thread(file.entries)
                for first in range(0, len(entries), MAX_GROUP):
                    await self._replay_chunk(entries[first : first + MAX_GROUP])
                count += len(entries)
                file.delete()
                self._journal.num_pending -= file.own_records
        finally:
            for file in files:
                file.put_back()
        self.counters.replayed += count
        if count:
            log.warning("replayed %d rows from the journal in %.3f s", count, time.monotonic() - started)
        return count

    async def _replay_chunk(self, chunk: list[Entry]) -> None:
        """What conflicts or what the database refuses is kept beside the journal, so that it holds up nothing."""
        results: list[bool | LedgerConflict]
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S * 4):
                results = await self.write(chunk)
        except (DataError, IntegrityError) as exc:
            if len(chunk) > 1:
                for entry in chunk:
                    await self._replay_chunk([entry])
                return
            _log_refused(chunk[0], exc)
            results = [LedgerConflict("refused by the database")]
            self._on_conflict(chunk[0])
        for entry, result in zip(chunk, results, strict=True):
            if isinstance(result, LedgerConflict):
                self._journal.keep_conflict(entry)


def _log_refused(entry: Entry, exc: Exception) -> None:
    log.error("the database refuses the row of request %s: %s", entry.request_id, type(exc).__name__)


async def insert_entries(
    session: AsyncSession, rows: list[dict[str, Any]], dialect: str
) -> set[tuple[str, int, EntryKind, int]]:
    """Within a session's transaction: insert what is not there yet, mark the buckets; returns the keys inserted."""
    make = sqlite.insert if dialect == "sqlite" else postgresql.insert
    statement = make(LedgerEntry).on_conflict_do_nothing(index_elements=list(_KEY))
    columns = [getattr(LedgerEntry, name) for name in _KEY]
    result = await session.execute(statement.returning(*columns), rows)
    fresh = {(r.request_id, r.attempt, EntryKind(r.kind), r.seq) for r in result}
    if fresh:
        buckets = {row["bucket"] for row in rows}
        await session.execute(sa.insert(RollupMark), [{"bucket": bucket} for bucket in sorted(buckets)])
    return fresh


async def find_entry(session: AsyncSession, entry: Entry) -> LedgerEntry | None:
    """The booked row of the same key."""
    return await session.scalar(
        sa.select(LedgerEntry).where(*(getattr(LedgerEntry, name) == getattr(entry, name) for name in _KEY))
    )


def correct(booked: LedgerEntry, truth: Entry) -> Entry:
    """The correction that, added to `booked`, makes `truth`: differences of tokens and amounts, the row's id."""
    changes: dict[str, Any] = {
        field: getattr(truth, field) - getattr(booked, field) for field in (*TOKEN_FIELDS, *AMOUNT_FIELDS)
    }
    for field in ("engine_us", "cost_nano_usd", "saved_input_tokens", "saved_output_tokens", "saved_nano_usd"):
        changes[field] = getattr(truth, field) - getattr(booked, field)
    return msgspec.structs.replace(
        truth,
        kind=EntryKind.CORRECTION,
        seq=0,
        corrects_id=booked.id,
        accepted_at=booked.accepted_at,  # the same window and bucket as what it corrects
        note="the request's end turned up after it was booked as interrupted",
        **changes,
    )


__all__ = ["Booked", "LedgerCounters", "LedgerWriter", "correct", "find_entry", "insert_entries"]
