"""Batches in SQL. A lease says which gateway works on a batch: whoever writes shows that it still holds it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing.clock import Clock, utc_now
from billing.db import Database
from billing.ids import new_id
from billing.principal import Principal
from billing.tables import ApiKey, Project, Status, Tenant
from gateway.errors import Conflict, NotFound, RateLimited, clip
from gateway.schemas.batches import BatchRequest, InputLine
from gateway.tables.batches import OPEN, Batch, BatchLine, BatchStatus

MAX_OPEN_BATCHES = 100  # of one project
WINDOW = timedelta(hours=24)
_MOMENTS = {
    BatchStatus.IN_PROGRESS: "in_progress_at",
    BatchStatus.FINALIZING: "finalizing_at",
    BatchStatus.CANCELLING: "cancelling_at",
}


class LeaseLost(Exception):
    """Another gateway works on the batch now; this one must not write any more."""


class BatchStore:
    """`lease_s` is how long a gateway may be silent before another takes its batches over: longer than a hold lives
    (15 s), so that what a dead gateway left held is settled or still there when its line is asked again."""

    def __init__(
        self, db: Database, *, lease_s: float = 45.0, owner: str | None = None, clock: Clock = utc_now
    ) -> None:
        self._db = db
        self._lease = timedelta(seconds=lease_s)
        self._owner = owner or new_id("gw")
        self._clock = clock

    # -- what clients see

    async def add(self, principal: Principal, data: BatchRequest) -> Batch:
        """Raises: RateLimited with MAX_OPEN_BATCHES open ones."""
        now = self._clock()
        batch = Batch(
            id=new_id("batch"),
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            key_id=principal.key_id,
            principal=msgspec.to_builtins(principal),
            endpoint=data.endpoint,
            input_file_id=data.input_file_id,
            output_file_id=None,
            error_file_id=None,
            completion_window=data.completion_window,
            status=BatchStatus.VALIDATING,
            errors=[],
            metadata_=data.metadata or {},
            total=0,
            completed=0,
            failed=0,
            lease_owner=None,
            leased_until=None,
            created_at=now,
            expires_at=now + WINDOW,
            in_progress_at=None,
            finalizing_at=None,
            cancelling_at=None,
            ended_at=None,
        )
        async with self._db.begin() as session:
            opened = sa.select(sa.func.count()).where(
                Batch.tenant_id == principal.tenant_id,
                Batch.project_id == principal.project_id,
                Batch.status.in_(OPEN),
            )
            if (await session.scalar(opened) or 0) >= MAX_OPEN_BATCHES:
                raise RateLimited(
                    f"This project has {MAX_OPEN_BATCHES} batches that are not finished; wait for one to end.",
                    retry_after_s=60,
                )
            session.add(batch)
        return batch

    async def get(self, principal: Principal, batch_id: str) -> Batch:
        """Raises: NotFound when it is absent or another's."""
        async with self._db.read() as session:
            return await self._own(session, principal, batch_id)

    async def _own(self, session: AsyncSession, principal: Principal, batch_id: str) -> Batch:
        batch = await session.get(Batch, batch_id)
        if batch is None or (batch.tenant_id, batch.project_id) != (principal.tenant_id, principal.project_id):
            raise NotFound(f"No batch found with id '{clip(batch_id, 64)}'.")
        return batch

    async def page(self, principal: Principal, *, limit: int, after: str | None) -> tuple[list[Batch], bool]:
        """The newest first, and whether there are more."""
        query = sa.select(Batch).where(Batch.tenant_id == principal.tenant_id, Batch.project_id == principal.project_id)
        if after is not None:
            query = query.where(Batch.id < after)
        async with self._db.read() as session:
            rows = list(await session.scalars(query.order_by(Batch.id.desc()).limit(limit + 1)))
        return rows[:limit], len(rows) > limit

    async def cancel(self, principal: Principal, batch_id: str) -> Batch:
        """Asks the batch's gateway to stop. Raises: NotFound; Conflict when it has ended."""
        async with self._db.begin() as session:
            batch = await self._own(session, principal, batch_id)
            if batch.status not in OPEN:
                raise Conflict(f"Cannot cancel a batch with status '{batch.status}'.")
            if batch.status is not BatchStatus.CANCELLING:
                batch.status, batch.cancelling_at = BatchStatus.CANCELLING, self._clock()
        return batch

    # -- what workers do

    async def claim(self) -> Batch | None:
        """The oldest open batch that no living gateway works on, with its lease taken; None when there is none."""
        now = self._clock()
        free = sa.or_(Batch.leased_until.is_(None), Batch.leased_until <= now)
        oldest = sa.select(Batch.id).where(Batch.status.in_(OPEN), free).order_by(Batch.id).limit(1)
        async with self._db.begin() as session:
            batch_id = await session.scalar(oldest)
            if batch_id is None:
                return None
            taken = await session.execute(
                sa.update(Batch)
                .where(Batch.id == batch_id, free)
                .values(lease_owner=self._owner, leased_until=now + self._lease)
            )
            if cast(sa.CursorResult[Any], taken).rowcount != 1:
                return None
        async with self._db.read() as session:
            return await session.get(Batch, batch_id)

    async def renew(self, batch_id: str) -> Batch:
        """Renews the lease; returns the batch as it is now. Raises: LeaseLost."""
        async with self._db.begin() as session:
            await self._hold(session, batch_id)
            batch = await session.get(Batch, batch_id)
        assert batch is not None
        return batch

    async def release(self, batch_id: str) -> None:
        """Lets another gateway take it at once."""
        async with self._db.begin() as session:
            await session.execute(
                sa.update(Batch)
                .where(Batch.id == batch_id, Batch.lease_owner == self._owner)
                .values(lease_owner=None, leased_until=None)
            )

    async def _hold(self, session: AsyncSession, batch_id: str) -> None:
        renewed = await session.execute(
            sa.update(Batch)
            .where(Batch.id == batch_id, Batch.lease_owner == self._owner)
            .values(leased_until=self._clock() + self._lease)
        )
        if cast(sa.CursorResult[Any], renewed).rowcount != 1:
            raise LeaseLost(batch_id)

    async def advance(
        self, batch_id: str, status: BatchStatus, *, was: Sequence[BatchStatus] = OPEN, **values: Any
    ) -> None:
        """Changes the status where it is one of `was`; a batch being cancelled stays so. Raises: LeaseLost."""
        now = self._clock()
        values[_MOMENTS.get(status, "ended_at")] = now
        if status not in OPEN:
            values |= {"lease_owner": None, "leased_until": None}
        async with self._db.begin() as session:
            await self._hold(session, batch_id)
            await session.execute(
                sa.update(Batch).where(Batch.id == batch_id, Batch.status.in_(was)).values(status=status, **values)
            )

    async def add_lines(self, batch_id: str, lines: Sequence[tuple[int, InputLine]]) -> None:
        """Keeps lines that were found good. Raises: LeaseLost."""
        rows = [
            {
                "batch_id": batch_id,
                "number": number,
                "custom_id": line.custom_id,
                "body": msgspec.json.encode(line.body).decode(),
                "result": None,
                "ok": None,
            }
            for number, line in lines
        ]
        async with self._db.begin() as session:
            await self._hold(session, batch_id)
            await session.execute(sa.insert(BatchLine), rows)

    async def forget_lines(self, batch_id: str) -> None:
        """Before a validation that was broken off begins anew. Raises: LeaseLost."""
        async with self._db.begin() as session:
            await self._hold(session, batch_id)
            await session.execute(sa.delete(BatchLine).where(BatchLine.batch_id == batch_id))

    async def open_lines(self, batch_id: str, *, after: int, limit: int) -> list[BatchLine]:
        """Lines without an answer, in order."""
        query = sa.select(BatchLine).where(
            BatchLine.batch_id == batch_id, BatchLine.ok.is_(None), BatchLine.number > after
        )
        async with self._db.read() as session:
            return list(await session.scalars(query.order_by(BatchLine.number).limit(limit)))

    async def answer(self, batch_id: str, number: int, result: bytes, *, ok: bool) -> None:
        """Keeps a line's answer, once, and counts it. Raises: LeaseLost."""
        column = Batch.completed if ok else Batch.failed
        async with self._db.begin() as session:
            await self._hold(session, batch_id)
            written = await session.execute(
                sa.update(BatchLine)
                .where(BatchLine.batch_id == batch_id, BatchLine.number == number, BatchLine.ok.is_(None))
                .values(result=result.decode(), ok=ok)
            )
            if cast(sa.CursorResult[Any], written).rowcount == 1:
                await session.execute(sa.update(Batch).where(Batch.id == batch_id).values({column: column + 1}))

    async def results(self, batch_id: str, *, ok: bool, after: int, limit: int) -> list[BatchLine]:
        """Answered lines of one kind, in order."""
        query = sa.select(BatchLine).where(
            BatchLine.batch_id == batch_id, BatchLine.ok.is_(ok), BatchLine.number > after
        )
        async with self._db.read() as session:
            return list(await session.scalars(query.order_by(BatchLine.number).limit(limit)))

    async def drop_answers(self, batch_id: str) -> None:
        """The lines of an ended batch: its files hold the answers now."""
        async with self._db.begin() as session:
            await session.execute(sa.delete(BatchLine).where(BatchLine.batch_id == batch_id))

    async def may_go_on(self, principal: Principal) -> bool:
        """False once the key was revoked or its project or tenant is not active any more."""
        query = (
            sa.select(ApiKey.revoked_at, Project.status, Tenant.status)
            .join(Project, Project.id == ApiKey.project_id)
            .join(Tenant, Tenant.id == ApiKey.tenant_id)
            .where(ApiKey.id == principal.key_id)
        )
        async with self._db.read() as session:
            row = (await session.execute(query)).one_or_none()
        return row is not None and row[0] is None and row[1] is Status.ACTIVE and row[2] is Status.ACTIVE

    def is_expired(self, batch: Batch) -> bool:
        """Its completion window is over."""
        expires_at: datetime = batch.expires_at
        return self._clock() >= expires_at

    async def erase(self, tenant_id: str) -> int:
        """Deletes all of a tenant's batches; returns how many."""
        mine = sa.select(Batch.id).where(Batch.tenant_id == tenant_id)
        async with self._db.begin() as session:
            await session.execute(sa.delete(BatchLine).where(BatchLine.batch_id.in_(mine)))
            deleted = await session.execute(sa.delete(Batch).where(Batch.tenant_id == tenant_id))
            return cast(sa.CursorResult[Any], deleted).rowcount
