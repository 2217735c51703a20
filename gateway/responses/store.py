"""Kept responses in SQL. Every read and write is by tenant and project: another's id reads as absent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import sqlalchemy as sa

from billing.clock import Clock, utc_now
from billing.db import Database
from billing.principal import Principal
from gateway.errors import InvalidRequest, NotFound, clip
from gateway.schemas.responses import Item
from gateway.tables.responses import OPEN, ResponseStatus, StoredResponse

MAX_TURNS = 500  # of one conversation by previous_response_id
SWEEP_ROWS = 1_000


class ResponseStore:
    """`retention_s` is how long a response is kept, seconds; `lease_s` how long its worker may be silent."""

    def __init__(self, db: Database, *, retention_s: float, lease_s: float = 30.0, clock: Clock = utc_now) -> None:
        self._db = db
        self._retention = timedelta(seconds=retention_s)
        self._lease = timedelta(seconds=lease_s)
        self._clock = clock

    async def add(
        self,
        principal: Principal,
        response: dict[str, Any],
        input_items: list[Item],
        *,
        end_user: str | None,
        streamed: bool = False,
    ) -> None:
        """Keeps a response, final or just queued. `streamed`: its events will be kept too."""
        now, status = self._clock(), ResponseStatus(response["status"])
        row = StoredResponse(
            id=response["id"],
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            end_user=end_user,
            status=status,
            background=response["background"],
            previous_response_id=response["previous_response_id"],
            input_items=input_items,
            response=response,
            events=[] if streamed else None,
            leased_until=now + self._lease if status in OPEN else None,
            created_at=now,
            expires_at=now + self._retention,
        )
        async with self._db.begin() as session:
            session.add(row)

    async def get(self, principal: Principal, response_id: str) -> StoredResponse:
        """Raises: NotFound when it is absent, another's or past its retention."""
        row = await self._find(principal, response_id)
        if row is None:
            raise NotFound(f"Response with id '{clip(response_id, 64)}' not found.")
        return row

    async def _find(self, principal: Principal, response_id: str) -> StoredResponse | None:
        async with self._db.read() as session:
            row = await session.get(StoredResponse, response_id)
        if row is None or row.expires_at <= self._clock():
            return None
        return row if (row.tenant_id, row.project_id) == (principal.tenant_id, principal.project_id) else None

    async def history(self, principal: Principal, response_id: str) -> list[Item]:
        """Input and output items of the response and all before it, oldest first.

        Raises: InvalidRequest, code previous_response_not_found, when the response or one before it is not kept.
        """
        turns: list[StoredResponse] = []
        wanted: str | None = response_id
        while wanted is not None:
            row = await self._find(principal, wanted)
            if row is None or len(turns) == MAX_TURNS:
                raise InvalidRequest(
                    f"Previous response with id '{clip(response_id, 64)}' not found.",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            if row.status in OPEN:
                raise InvalidRequest(
                    f"Previous response with id '{clip(response_id, 64)}' is not finished yet.",
                    param="previous_response_id",
                    code="invalid_value",
                )
            turns.append(row)
            wanted = row.previous_response_id
        items: list[Item] = []
        for row in reversed(turns):
            items += [*row.input_items, *row.response["output"]]
        return items

    async def delete(self, principal: Principal, response_id: str) -> None:
        """Raises: NotFound."""
        row = await self.get(principal, response_id)
        async with self._db.begin() as session:
            await session.execute(sa.delete(StoredResponse).where(StoredResponse.id == row.id))

    async def advance(self, response: dict[str, Any], events: Sequence[bytes] = ()) -> bool:
        """Writes an open response's new state, at its end with its events if it is streamed.

        False when it is closed already (cancelled, expired, deleted).
        """
        status = ResponseStatus(response["status"])
        kept: dict[str, Any] = {"events": [frame.decode() for frame in events]} if events else {}
        update = (
            sa.update(StoredResponse)
            .where(StoredResponse.id == response["id"], StoredResponse.status.in_(OPEN))
            .values(
                status=status,
                response=response,
                leased_until=self._clock() + self._lease if status in OPEN else None,
                **kept,
            )
        )
        async with self._db.begin() as session:
            result = cast(sa.CursorResult[Any], await session.execute(update))
        return result.rowcount == 1

    async def renew(self, response_ids: Sequence[str]) -> set[str]:
        """Renews the leases of what this gateway works on; returns those that are still open."""
        if not response_ids:
            return set()
        mine = StoredResponse.id.in_(response_ids), StoredResponse.status.in_(OPEN)
        async with self._db.begin() as session:
            await session.execute(
                sa.update(StoredResponse).where(*mine).values(leased_until=self._clock() + self._lease)
            )
            return set(await session.scalars(sa.select(StoredResponse.id).where(*mine)))

    async def sweep(self) -> list[dict[str, Any]]:
        """Deletes what is past its retention; returns open responses whose gateway has died, for `advance`."""
        now = self._clock()
        async with self._db.begin() as session:
            old = sa.select(StoredResponse.id).where(StoredResponse.expires_at <= now).limit(SWEEP_ROWS)
            ids = list(await session.scalars(old))
            if ids:
                await session.execute(sa.delete(StoredResponse).where(StoredResponse.id.in_(ids)))
            lost = sa.select(StoredResponse.response).where(
                StoredResponse.status.in_(OPEN), StoredResponse.leased_until <= now
            )
            return list(await session.scalars(lost.limit(SWEEP_ROWS)))

    async def erase(self, tenant_id: str, *, end_user: str | None = None, before: datetime | None = None) -> int:
        """Deletes a tenant's responses, or one end user's of them; returns how many."""
        conditions = [StoredResponse.tenant_id == tenant_id]
        if end_user is not None:
            conditions.append(StoredResponse.end_user == end_user)
        if before is not None:
            conditions.append(StoredResponse.created_at < before)
        async with self._db.begin() as session:
            result = cast(sa.CursorResult[Any], await session.execute(sa.delete(StoredResponse).where(*conditions)))
        return result.rowcount
