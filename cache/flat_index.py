"""The default vector index: each partition's vectors are loaded from Redis on demand and kept in an LRU of arrays.

Every search brings the partition's version, which the exact lookup read a moment ago, so an entry that any gateway
stored before that read is found. What is loaded is only what was added since (`seq`); removals (`gen`) make the ids be
listed again; another `epoch` means that the partition was emptied meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from importlib.resources import files
from typing import Any

import numpy as np
from redis.asyncio import Redis

from cache.keys import TenantKeys
from cache.outcome import Reason
from cache.store import STORE_TROUBLE, PartitionVersion
from cache.vectors import Candidate, FlatVectors, Vector

LOAD_BATCH = 512
INLINE_ROWS = 4096  # below, a scan takes under 0.3 ms: less than handing it to a thread

_VECTORS = (files("cache") / "lua" / "vectors.lua").read_text()

log = logging.getLogger(__name__)


class _Partition:
    """One partition's arrays and the version they stand for."""

    def __init__(self, dims: int) -> None:
        self.vectors = FlatVectors(dims)
        self.version = PartitionVersion()
        self.loading: asyncio.Task[None] | None = None

    def covers(self, version: PartitionVersion) -> bool:
        own = self.version
        return own.epoch == version.epoch and own.seq >= version.seq and own.gen >= version.gen


class FlatIndex:
    """Vectors of many partitions, at most `max_bytes` of them; the least recently asked partition leaves first."""

    def __init__(self, redis: Redis, *, dims: int, max_bytes: int = 512 * 1024 * 1024) -> None:
        self._redis, self._dims, self._max_bytes = redis, dims, max_bytes
        self._partitions: OrderedDict[str, _Partition] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return sum(partition.vectors.size_bytes for partition in self._partitions.values())

    async def search(
        self,
        keys: TenantKeys,
        partition: str,
        version: PartitionVersion,
        vector: Vector,
        *,
        threshold: float,
        limit: int,
        timeout_s: float,
    ) -> list[Candidate] | Reason:
        """The nearest entries of cosine >= threshold, or why there is no telling: LOADING, STORE.

        A partition too large to be loaded within `timeout_s` goes on loading for the next request.
        """
        if not version.epoch:
            return []
        held = self._hold(keys, partition)
        # Twice at most: the first load found running may have begun before this version was written.
        for _ in range(2):
            if held.covers(version):
                break
            trouble = await self._refresh(held, keys, partition, timeout_s)
            if trouble is not None:
                return trouble
        vectors = held.vectors
        if len(vectors) <= INLINE_ROWS:
            return vectors.search(vector, threshold, limit)
        changes = vectors.changes
        found = await asyncio.to_thread(vectors.scan, vector, threshold, limit)
        if held.vectors is vectors and vectors.changes == changes:
            return vectors.candidates(*found)
        return held.vectors.search(vector, threshold, limit)  # rows moved under the scan: once more, undisturbed

    def forget(self, keys: TenantKeys, partition: str, entry_id: str) -> None:
        """Drops an entry that turned out to have expired, so that it does not stand before living ones again."""
        held = self._partitions.get(keys.members(partition))
        if held is not None:
            held.vectors.discard(entry_id)

    async def close(self) -> None:
        """Ends loads that still run."""
        tasks = [held.loading for held in self._partitions.values() if held.loading is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _hold(self, keys: TenantKeys, partition: str) -> _Partition:
        name = keys.members(partition)
        held = self._partitions.get(name)
        if held is None:
            held = self._partitions[name] = _Partition(self._dims)
        self._partitions.move_to_end(name)
        return held

    async def _refresh(self, held: _Partition, keys: TenantKeys, partition: str, timeout_s: float) -> Reason | None:
        if held.loading is None:
            held.loading = asyncio.create_task(self._load(held, keys, partition), name="vectors-load")
        task = held.loading
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(task)
        except TimeoutError:
            return Reason.STORE if task.done() else Reason.LOADING
        except STORE_TROUBLE:
            return Reason.STORE
        return None

    async def _load(self, held: _Partition, keys: TenantKeys, partition: str) -> None:
        """Brings the arrays up to what the partition holds now. Raises: RedisError, OSError, TimeoutError."""
        try:
            members = keys.members(partition)
            pipe = self._redis.pipeline(transaction=False)
            pipe.hmget(keys.state(partition), ["epoch", "seq", "gen"])
            pipe.zrange(members, f"({held.version.seq}", "+inf", byscore=True)
            state, added = await pipe.execute()
            target = PartitionVersion.from_state(state)
            if target.epoch != held.version.epoch:
                held.vectors, held.version = FlatVectors(self._dims), PartitionVersion(target.epoch)
                added = await self._redis.zrange(members, 0, -1)
            elif target.gen != held.version.gen:
                living = set(_names(await self._redis.zrange(members, 0, -1)))
                for gone in held.vectors.ids - living:
                    held.vectors.discard(gone)
            await self._fetch(held, keys, _names(added))
            held.version = target
            self._shrink()
        finally:
            held.loading = None

    async def _fetch(self, held: _Partition, keys: TenantKeys, entry_ids: list[str]) -> None:
        for start in range(0, len(entry_ids), LOAD_BATCH):
            batch = entry_ids[start : start + LOAD_BATCH]
            names = [keys.entry(entry_id) for entry_id in batch]
            reply: Any = await self._redis.eval(_VECTORS, len(names), *names, 4 * self._dims)
            present, raw = reply
            found = [entry_id for entry_id, flag in zip(batch, present, strict=True) if flag == ord("1")]
            held.vectors.add_many(found, np.frombuffer(raw, "<f4").reshape(len(found), self._dims))

    def _shrink(self) -> None:
        """The partition just loaded stays, whatever its size: a tenant's caps bound it."""
        while self.size_bytes > self._max_bytes and len(self._partitions) > 1:
            name, partition = self._partitions.popitem(last=False)
            if partition.loading is not None:
                self._partitions[name] = partition
                return


def _names(members: Any) -> list[str]:
    return [member.decode("ascii") for member in members]
