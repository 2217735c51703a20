"""Erasure: what a tenant, or one of its end users, left with us beside the books.

The ledger stays: it holds amounts and names, no prompt and no answer, and what is owed must be shown.
"""

from __future__ import annotations

import msgspec

from billing.db import Database
from cache.invalidation import Invalidator, Selection
from gateway.batches.store import BatchStore
from gateway.files.store import FileStore
from gateway.responses.store import ResponseStore


class Erased(msgspec.Struct, kw_only=True):
    """How many of each were deleted. Files and batches belong to a whole tenant, never to one end user."""

    responses: int
    cached_answers: int
    files: int = 0
    batches: int = 0


async def erase(db: Database, cache: Invalidator, tenant_id: str, *, end_user: str | None = None) -> Erased:
    """Deletes kept responses and cached answers, and, for a whole tenant, its files and batches.

    A batch that is running stops at its next line. Raises: RedisError, with what lies in SQL deleted already.
    """
    erased = Erased(
        responses=await ResponseStore(db, retention_s=1).erase(tenant_id, end_user=end_user), cached_answers=0
    )
    if end_user is None:
        erased.batches = await BatchStore(db).erase(tenant_id)
        erased.files = await FileStore(db, retention_s=1, max_tenant_bytes=0).erase(tenant_id)
    removed = await cache.invalidate(tenant_id, Selection(end_user=end_user))
    erased.cached_answers = removed.entries
    return erased
