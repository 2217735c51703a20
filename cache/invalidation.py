"""Taking answers back: by tenant, project, model, tag, end user or entry, with a dry run; and reaping what is dead.

Redis expires an entry's hash by itself, but not its rows in the tenant's index; and entries of an embedder that is no
longer used can never be found again. `reap` removes both, so that size accounts stay true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from cache.keys import IndexRow, TenantKeys
from cache.partition import scope_digest
from cache.store import REMOVE_BATCH, RedisStore, Victims

REAP_BATCH = 512


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of a tenant's entries: those that meet every field that is given; with none given, all."""

    project: str | None = None
    model: str | None = None
    tag: str | None = None
    end_user: str | None = None
    entry_id: str | None = None


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What was, or in a dry run would be, removed."""

    entries: int
    size_bytes: int
    dry_run: bool = False


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's share of the cache; `size_bytes` as accounted, expired but unreaped entries included."""

    entries: int
    size_bytes: int


class Invalidator:
    """Removal over one store. Its methods raise RedisError: an operator must know that nothing was removed."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def usage(self, tenant: str) -> Usage:
        """Raises: RedisError."""
        keys = self._store.keys(tenant)
        entries = await self._store.redis.hlen(keys.index)
        raw = await self._store.redis.hget(keys.usage, "bytes")
        return Usage(entries=int(entries), size_bytes=int(raw or 0))

    async def invalidate(self, tenant: str, selection: Selection, *, dry_run: bool = False) -> Removed:
        """Removes the selected entries of one tenant; a dry run only counts them. Raises: RedisError."""
        keys = self._store.keys(tenant)
        matches = _matcher(selection)
        if selection.entry_id is not None:
            raw = await self._store.redis.hget(keys.index, selection.entry_id)
            victims = [(selection.entry_id, IndexRow.decode(raw))] if isinstance(raw, bytes) else []
            victims = [victim for victim in victims if matches(victim[1])]
        else:
            victims = await self._scan(keys, matches)
        if dry_run:
            size_bytes = sum(row.size_bytes for _, row in victims)
            return Removed(entries=len(victims), size_bytes=size_bytes, dry_run=True)
        entries, size_bytes = await self._store.remove(keys, victims)
        return Removed(entries=entries, size_bytes=size_bytes)

    async def reap(self, *, embedder_fingerprint: str | None = None, stale_after_s: int = 3600) -> Removed:
        """Removes expired entries of all tenants, and with a fingerprint also those of other embedders.

        `stale_after_s`: an entry of another embedder must be this old, so that gateways that are being upgraded one by
        one do not reap each other's. Raises: RedisError.
        """
        current = (embedder_fingerprint or "")[:32]
        before_ms = self._store.now_ms() - stale_after_s * 1000

        def stale(row: IndexRow) -> bool:
            return row.embedder != current and row.stored_ms < before_ms

        entries = size_bytes = 0
        tenants = f"{self._store.prefix}:tenants"
        for raw in await self._store.redis.smembers(tenants):
            keys = TenantKeys(self._store.prefix, raw.decode() if isinstance(raw, bytes) else raw)
            victims = await self._expired(keys)
            if embedder_fingerprint is not None:
                victims += await self._scan(keys, stale)
            removed, freed = await self._store.remove(keys, victims)
            entries, size_bytes = entries + removed, size_bytes + freed
            if not await self._store.redis.hlen(keys.index):
                await self._store.redis.srem(tenants, keys.tenant)
        return Removed(entries=entries, size_bytes=size_bytes)

    async def _expired(self, keys: TenantKeys) -> Victims:
        redis, now_ms = self._store.redis, self._store.now_ms()
        due: Any = await redis.zrange(keys.expiry, "-inf", now_ms, byscore=True)
        names = [raw.decode() for raw in due]
        victims: Victims = []
        for start in range(0, len(names), REAP_BATCH):
            batch = names[start : start + REAP_BATCH]
            rows: list[Any] = await redis.hmget(keys.index, batch)
            victims += [(name, IndexRow.decode(row)) for name, row in zip(batch, rows, strict=True) if row is not None]
        return victims

    async def _scan(self, keys: TenantKeys, matches: Callable[[IndexRow], bool]) -> Victims:
        victims: Victims = []
        async for name, row in self._store.redis.hscan_iter(keys.index, count=REMOVE_BATCH):
            decoded = IndexRow.decode(row)
            if matches(decoded):
                victims.append((name.decode(), decoded))
        return victims


def _matcher(selection: Selection) -> Callable[[IndexRow], bool]:
    wanted = {
        kind: scope_digest(kind, value)
        for kind, value in (
            ("project", selection.project),
            ("model", selection.model),
            ("tag", selection.tag),
            ("end-user", selection.end_user),
        )
        if value is not None
    }

    def matches(row: IndexRow) -> bool:
        own = {"project": row.project, "model": row.model, "end-user": row.end_user}
        return all(digest in row.tags if kind == "tag" else own[kind] == digest for kind, digest in wanted.items())

    return matches
