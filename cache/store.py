"""Entries in Redis >= 6.2 or Valkey: the exact lookup and the write as pipeline stages, removal, size caps.

A stage queues its commands on a pipeline that the gateway executes together with other rooms' stages (one trip) with
`raise_on_error=False`, and turns its slice of the replies into a result. Trouble with Redis is a miss, never an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError, RedisError

from cache.entry import CachedAnswer
from cache.keys import IndexRow, TenantKeys
from cache.outcome import Reason
from cache.partition import scope_digest, tenant_digest

DEFAULT_PREFIX = "weir:cache"
REMOVE_BATCH = 128

Command = tuple[Any, ...]  # a command's words, as `hiredis` packs them

_PUT = (files("cache") / "lua" / "put.lua").read_text()
_PUT_SHA = hashlib.sha1(_PUT.encode(), usedforsecurity=False).hexdigest()
_REMOVE = (files("cache") / "lua" / "remove.lua").read_text()

# What a slow or absent Redis raises: all of it means "no cache now".
STORE_TROUBLE = (RedisError, OSError, TimeoutError, msgspec.DecodeError)


class PartitionVersion(msgspec.Struct, frozen=True):
    """Which entries a partition holds: `seq` grows with each added, `gen` with each removed, `epoch` is per life.

    The default is the version of an empty partition.
    """

    epoch: str = ""
    seq: int = 0
    gen: int = 0

    @classmethod
    def from_state(cls, state: Sequence[bytes | None]) -> PartitionVersion:
        """From the fields epoch, seq, gen of a partition's state."""
        epoch, seq, gen = state
        return cls() if epoch is None else cls(_text(epoch), int(seq or 0), int(gen or 0))


class ExactResult(msgspec.Struct, frozen=True, kw_only=True):
    """`answer` is None on a miss, `reason` says why. `age_s` is the answer's. `version` serves the semantic lookup."""

    answer: CachedAnswer | None
    reason: Reason
    age_s: float = 0.0
    version: PartitionVersion | None = PartitionVersion()


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One answer with its surroundings, ready to be written.

    `vector`: the question's unit vector as float32 bytes, None where it must never be a semantic hit. `end_user` is
    set for entries of an end user's own partition, so that erasing the user finds them.
    """

    tenant: str
    project: str
    model: str
    entry_id: str
    partition: str
    embedder_fingerprint: str
    text: str
    answer: CachedAnswer
    vector: bytes | None = None
    end_user: str | None = None
    tags: tuple[str, ...] = ()
    ttl_s: int | None
    max_entries: int
    max_bytes: int


Victims = list[tuple[str, IndexRow]]


class ExactLookup:
    """Stage: one entry and its partition's version; a hit counts as use for the LRU but never renews the expiry."""

    def __init__(self, keys: TenantKeys, entry_id: str, partition: str, max_age_s: int | None, now_ms: int) -> None:
        self._keys, self._entry_id, self._partition = keys, entry_id, partition
        self._max_age_s, self._now_ms = max_age_s, now_ms

    @property
    def commands(self) -> list[Command]:
        """What goes to Redis; as many replies come back. Raw, as redis-py's own methods cost more than Redis itself."""
        return [
            ("HMGET", self._keys.entry(self._entry_id), "a", "c"),
            ("HMGET", self._keys.state(self._partition), "epoch", "seq", "gen"),
            ("ZADD", self._keys.lru, "XX", self._now_ms, self._entry_id),
        ]

    def queue(self, pipe: Pipeline) -> int:
        """On anybody's pipeline; returns how many replies it takes."""
        return _queue(pipe, self.commands)

    def parse(self, replies: Sequence[Any]) -> ExactResult:
        """Never raises: an error reply is a miss with `Reason.STORE` and an unknown version (None)."""
        entry, state = replies[0], replies[1]
        if isinstance(entry, Exception) or isinstance(state, Exception):
            return ExactResult(answer=None, reason=Reason.STORE, version=None)
        version = PartitionVersion.from_state(state)
        raw, stored_ms = entry
        if raw is None or stored_ms is None:
            return ExactResult(answer=None, reason=Reason.ABSENT, version=version)
        age_s = max(0.0, (self._now_ms - int(stored_ms)) / 1000)
        if self._max_age_s is not None and age_s > self._max_age_s:
            return ExactResult(answer=None, reason=Reason.MAX_AGE, version=version)
        try:
            answer = CachedAnswer.decode(raw)
        except msgspec.DecodeError:  # written by another version of Weir
            return ExactResult(answer=None, reason=Reason.ABSENT, version=version)
        return ExactResult(answer=answer, reason=Reason.NONE, age_s=age_s, version=version)

    async def run(self, redis: Redis, *, timeout_s: float) -> ExactResult:
        """The stage alone, within `timeout_s` seconds; trouble is a miss."""
        pipe = redis.pipeline(transaction=False)
        self.queue(pipe)
        try:
            async with asyncio.timeout(timeout_s):
                return self.parse(await pipe.execute(raise_on_error=False))
        except TimeoutError:
            return ExactResult(answer=None, reason=Reason.DEADLINE, version=None)
        except STORE_TROUBLE:
            return ExactResult(answer=None, reason=Reason.STORE, version=None)


class Put:
    """Stage: writes one entry. Its result names the entries that must leave for it: hand them to `remove`."""

    def __init__(self, keys: TenantKeys, prefix: str, entry: CacheEntry, now_ms: int) -> None:
        self._keys, self._prefix, self._entry, self._now_ms = keys, prefix, entry, now_ms

    @property
    def commands(self) -> list[Command]:
        """What goes to Redis; as many replies come back. Only for `RedisStore.finish`, as Redis may not know it."""
        return self._commands("EVALSHA", _PUT_SHA)

    @property
    def loading(self) -> list[Command]:
        """As `commands`, with the script itself."""
        return self._commands("EVAL", _PUT)

    def _commands(self, run: str, script: str) -> list[Command]:
        keys, arguments = self._script_keys(), self._script_args()
        return [
            (run, script, len(keys), *keys, *arguments),
            ("SADD", f"{self._prefix}:tenants", self._keys.tenant),
        ]

    def queue(self, pipe: Pipeline) -> int:
        """On anybody's pipeline; returns how many replies it takes."""
        return _queue(pipe, self.loading)

    def parse(self, replies: Sequence[Any]) -> Victims:
        """Raises: the error reply, if writing failed."""
        if isinstance(replies[0], Exception):
            raise replies[0]
        flat = replies[0]
        return [(_text(flat[i]), IndexRow.decode(flat[i + 1])) for i in range(0, len(flat), 2)]

    def _script_keys(self) -> list[str]:
        keys, entry = self._keys, self._entry
        partition_keys = [keys.state(entry.partition), keys.members(entry.partition)]
        return [keys.entry(entry.entry_id), *partition_keys, keys.lru, keys.expiry, keys.index, keys.usage]

    def _script_args(self) -> list[Any]:
        entry, now_ms = self._entry, self._now_ms
        fields: list[Any] = ["a", entry.answer.encode(), "x", entry.text, "p", entry.partition, "c", now_ms]
        if entry.vector is not None:
            fields += ["v", entry.vector]
        size_bytes = sum(len(f if isinstance(f, bytes) else str(f).encode()) for f in fields) + _OVERHEAD_BYTES
        row = IndexRow(
            partition=entry.partition,
            size_bytes=size_bytes,
            stored_ms=now_ms,
            project=scope_digest("project", entry.project),
            model=scope_digest("model", entry.model),
            embedder=entry.embedder_fingerprint[:32],
            end_user=scope_digest("end-user", entry.end_user) if entry.end_user is not None else "",
            tags=tuple(scope_digest("tag", tag) for tag in entry.tags),
        )
        expires_ms = 0 if entry.ttl_s is None else now_ms + entry.ttl_s * 1000
        limits = [entry.max_entries, entry.max_bytes]
        has_vector = 0 if entry.vector is None else 1
        head = [entry.entry_id, now_ms, expires_ms, size_bytes, row.encode(), secrets.token_hex(8), *limits, has_vector]
        return head + fields


# Keys, index row, three sorted-set members and the allocator's share, measured with MEMORY USAGE on Valkey 9.1.
_OVERHEAD_BYTES = 900


class RedisStore:
    """All entries of all tenants in one Redis. `clock` gives Unix seconds."""

    def __init__(self, redis: Redis, *, prefix: str = DEFAULT_PREFIX, clock: Callable[[], float] = time.time) -> None:
        self.redis, self.prefix, self._clock = redis, prefix, clock

    def keys(self, tenant: str) -> TenantKeys:
        """The keys of the tenant with this name."""
        return TenantKeys(self.prefix, tenant_digest(tenant))

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    def lookup(self, tenant: str, entry_id: str, partition: str, *, max_age_s: int | None = None) -> ExactLookup:
        """The exact lookup of `partition.exact_key` as a stage."""
        return ExactLookup(self.keys(tenant), entry_id, partition, max_age_s, self.now_ms())

    def put(self, entry: CacheEntry) -> Put:
        """Writing `entry` as a stage. After the pipeline ran, pass its result to `remove`."""
        return Put(self.keys(entry.tenant), self.prefix, entry, self.now_ms())

    async def store(self, entry: CacheEntry, *, timeout_s: float) -> bool:
        """Writes `entry` and removes what must leave for it; False if Redis did not answer in `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.remove(self.keys(entry.tenant), await self._put(self.put(entry)))
        except STORE_TROUBLE:
            return False
        return True

    async def finish(self, stage: Put, keys: TenantKeys, replies: Sequence[Any]) -> None:
        """After `stage.commands` ran: loads the script where Redis did not know it, and removes what must leave.

        Raises: what `STORE_TROUBLE` names."""
        try:
            victims = stage.parse(replies)
        except NoScriptError:
            victims = await self._put(stage)
        await self.remove(keys, victims)

    async def _put(self, stage: Put) -> Victims:
        pipe = self.redis.pipeline(transaction=False)
        stage.queue(pipe)
        return stage.parse(await pipe.execute(raise_on_error=False))

    async def remove(self, keys: TenantKeys, victims: Victims) -> tuple[int, int]:
        """Removes entries that are still as seen. Returns how many left and their bytes. Raises: RedisError."""
        removed = freed = 0
        for start in range(0, len(victims), REMOVE_BATCH):
            batch = victims[start : start + REMOVE_BATCH]
            script_keys = [keys.lru, keys.expiry, keys.index, keys.usage]
            args: list[str] = []
            for entry_id, row in batch:
                script_keys += [keys.entry(entry_id), keys.state(row.partition), keys.members(row.partition)]
                args += [entry_id, row.encode()]
            reply: Any = await self.redis.eval(_REMOVE, len(script_keys), *script_keys, *args)
            removed += int(reply[0])
            freed += int(reply[1])
        return removed, freed


def _queue(pipe: Pipeline, commands: Sequence[Command]) -> int:
    for command in commands:
        pipe.execute_command(*command)
    return len(commands)


def _text(raw: bytes | str) -> str:
    return raw.decode("ascii") if isinstance(raw, bytes) else raw
