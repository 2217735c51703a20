"""Files in SQL. Every read and write is by tenant and project: another's id reads as absent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

import sqlalchemy as sa

from billing.clock import Clock, utc_now
from billing.db import Database
from billing.ids import new_id
from gateway.errors import BodyTooLarge, InvalidRequest, NotFound, clip
from gateway.tables.files import FilePiece, StoredFile

PIECE_BYTES = 1 << 20
MAX_FILE_BYTES = 200 << 20  # OpenAI's for a batch's input
SWEEP_ROWS = 200


class FileStore:
    """`retention_s` is how long a file is kept, seconds; `max_tenant_bytes` all that one tenant may keep."""

    def __init__(self, db: Database, *, retention_s: float, max_tenant_bytes: int, clock: Clock = utc_now) -> None:
        self._db = db
        self._retention_s = retention_s
        self._max_tenant_bytes = max_tenant_bytes
        self._clock = clock

    async def write(
        self,
        tenant_id: str,
        project_id: str,
        *,
        filename: str,
        purpose: str,
        content: AsyncIterator[bytes],
        expires_after_s: float | None = None,
    ) -> StoredFile:
        """Keeps `content`, which may come in parts of any size. Nothing is kept when it fails.

        Raises: BodyTooLarge beyond MAX_FILE_BYTES or the tenant's total.
        """
        now = self._clock()
        file = StoredFile(
            id=new_id("file").replace("_", "-", 1),
            tenant_id=tenant_id,
            project_id=project_id,
            filename=clip(filename, 500),
            purpose=purpose,
            size_bytes=0,
            created_at=now,
            expires_at=now + timedelta(seconds=min(expires_after_s or self._retention_s, self._retention_s)),
        )
        room = min(MAX_FILE_BYTES, self._max_tenant_bytes - await self._used(tenant_id))
        async with self._db.begin() as session:
            session.add(file)
            await session.flush()
            seq = 0
            async for piece in _pieces(content):
                file.size_bytes += len(piece)
                if file.size_bytes > room:
                    raise BodyTooLarge(
                        f"The file is larger than the {max(0, room)} bytes that may still be kept; a file may have "
                        f"{MAX_FILE_BYTES} bytes, all files of a tenant {self._max_tenant_bytes}.",
                        param="file",
                    )
                await session.execute(sa.insert(FilePiece).values(file_id=file.id, seq=seq, data=piece))
                seq += 1
        return file

    async def _used(self, tenant_id: str) -> int:
        async with self._db.read() as session:
            total = sa.select(sa.func.coalesce(sa.func.sum(StoredFile.size_bytes), 0))
            return int(await session.scalar(total.where(StoredFile.tenant_id == tenant_id)) or 0)

    async def get(self, tenant_id: str, project_id: str, file_id: str) -> StoredFile:
        """Raises: NotFound when it is absent, another's or past its retention."""
        async with self._db.read() as session:
            file = await session.get(StoredFile, file_id)
        if (
            file is None
            or file.expires_at <= self._clock()
            or (file.tenant_id, file.project_id) != (tenant_id, project_id)
        ):
            raise NotFound(f"No such File object: {clip(file_id, 64)}", param="id")
        return file

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        """The pieces in order, one transaction each: a slow reader holds nothing open."""
        seq = 0
        while True:
            async with self._db.read() as session:
                piece = await session.get(FilePiece, (file_id, seq))
            if piece is None:
                return
            yield piece.data
            seq += 1

    async def lines(self, file_id: str) -> AsyncIterator[bytes]:
        """The content's lines without their ends; empty ones are left out."""
        rest = b""
        async for piece in self.content(file_id):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                if line.strip():
                    yield line
        if rest.strip():
            yield rest

    async def page(
        self, tenant_id: str, project_id: str, *, purpose: str | None, limit: int, after: str | None, newest_first: bool
    ) -> tuple[list[StoredFile], bool]:
        """A page and whether there are more. Ids sort by their time of creation."""
        query = sa.select(StoredFile).where(
            StoredFile.tenant_id == tenant_id,
            StoredFile.project_id == project_id,
            StoredFile.expires_at > self._clock(),
        )
        if purpose is not None:
            query = query.where(StoredFile.purpose == purpose)
        if after is not None:
            query = query.where(StoredFile.id < after if newest_first else StoredFile.id > after)
        order = StoredFile.id.desc() if newest_first else StoredFile.id.asc()
        async with self._db.read() as session:
            rows = list(await session.scalars(query.order_by(order).limit(limit + 1)))
        return rows[:limit], len(rows) > limit

    async def delete(self, tenant_id: str, project_id: str, file_id: str) -> None:
        """Raises: NotFound."""
        file = await self.get(tenant_id, project_id, file_id)
        await self._delete([file.id])

    async def _delete(self, ids: list[str]) -> None:
        async with self._db.begin() as session:
            await session.execute(sa.delete(FilePiece).where(FilePiece.file_id.in_(ids)))
            await session.execute(sa.delete(StoredFile).where(StoredFile.id.in_(ids)))

    async def sweep(self) -> int:
        """Deletes files past their retention, at most SWEEP_ROWS at once; returns how many."""
        async with self._db.read() as session:
            old = sa.select(StoredFile.id).where(StoredFile.expires_at <= self._clock()).limit(SWEEP_ROWS)
            ids = list(await session.scalars(old))
        if ids:
            await self._delete(ids)
        return len(ids)

    async def erase(self, tenant_id: str) -> int:
        """Deletes all of a tenant's files; returns how many."""
        mine = sa.select(StoredFile.id).where(StoredFile.tenant_id == tenant_id)
        async with self._db.begin() as session:
            await session.execute(sa.delete(FilePiece).where(FilePiece.file_id.in_(mine)))
            deleted = await session.execute(sa.delete(StoredFile).where(StoredFile.tenant_id == tenant_id))
            return cast(sa.CursorResult[Any], deleted).rowcount


async def _pieces(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces of PIECE_BYTES."""
    held = bytearray()
    async for part in content:
        held += part
        while len(held) >= PIECE_BYTES:
            yield bytes(held[:PIECE_BYTES])
            del held[:PIECE_BYTES]
    if held:
        yield bytes(held)


def check_purpose(purpose: object, allowed: tuple[str, ...]) -> str:
    """Raises: InvalidRequest, param `purpose`."""
    if isinstance(purpose, str) and purpose in allowed:
        return purpose
    if purpose is None:
        raise InvalidRequest(
            "Missing required parameter: 'purpose'.", param="purpose", code="missing_required_parameter"
        )
    supported = ", ".join(f"'{each}'" for each in allowed)
    raise InvalidRequest(
        f"Invalid value: '{clip(str(purpose), 40)}'. Supported values are: {supported}.",
        param="purpose",
        code="invalid_value",
    )
