"""Names in Redis. Everything of a tenant shares one hash tag, so a script's keys are in one Cluster slot.

    {prefix}:{T}:e:ID   hash    one entry: a answer, x question, v vector, p partition, c stored at (ms); own expiry
    {prefix}:{T}:p:PART hash    a partition's version: epoch (random, new after every emptying), seq, gen
    {prefix}:{T}:m:PART zset    a partition's entries with a vector by the seq that added them
    {prefix}:{T}:idx    hash    entry -> its index row (`IndexRow`), for size accounts and invalidation
    {prefix}:{T}:lru    zset    entry -> last use (ms)
    {prefix}:{T}:exp    zset    entry -> expiry (ms), for reaping what Redis has expired by itself
    {prefix}:{T}:use    hash    bytes
    {prefix}:{T}:f:ID   string  lease of a generation in flight; value: its token
    {prefix}:{T}:f:ID:TOKEN     stream of its events
    {prefix}:{T}:f:ID:w zset    followers on other gateways -> when they were last seen to be there (ms)
    {prefix}:{T}:shadow hash    counts of shadow verification
    {prefix}:tenants    set     tenant digests that have entries, for the reaper

T, ID and PART are hex digests made in `cache.partition`: no name that a caller chose is ever part of a key.
"""

from __future__ import annotations

from functools import cached_property

import msgspec


class TenantKeys(msgspec.Struct, frozen=True, dict=True):
    """The keys of one tenant. `tenant` is `partition.tenant_digest`."""

    prefix: str
    tenant: str

    @cached_property
    def _start(self) -> str:
        return f"{self.prefix}:{{{self.tenant}}}:"

    def _key(self, *parts: str) -> str:
        return self._start + ":".join(parts)

    def entry(self, entry_id: str) -> str:
        return self._key("e", entry_id)

    def state(self, partition: str) -> str:
        return self._key("p", partition)

    def members(self, partition: str) -> str:
        return self._key("m", partition)

    def flight_lease(self, key: str) -> str:
        return self._key("f", key)

    def flight_events(self, key: str, token: str) -> str:
        return self._key("f", key, token)

    def flight_watchers(self, key: str) -> str:
        return self._key("f", key, "w")

    @property
    def index(self) -> str:
        return self._key("idx")

    @property
    def lru(self) -> str:
        return self._key("lru")

    @property
    def expiry(self) -> str:
        return self._key("exp")

    @property
    def usage(self) -> str:
        return self._key("use")

    @property
    def shadow(self) -> str:
        return self._key("shadow")


class IndexRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an entry without reading it; written as text so that the scripts can compare and split it.

    All but the numbers are hex digests (`partition.scope_digest`); `end_user` is "" for shared entries.
    """

    partition: str
    size_bytes: int
    stored_ms: int
    project: str
    model: str
    embedder: str
    end_user: str = ""
    tags: tuple[str, ...] = ()

    def encode(self) -> str:
        fields = (self.partition, str(self.size_bytes), str(self.stored_ms), self.project, self.model, self.embedder)
        return "|".join((*fields, self.end_user, ",".join(self.tags)))

    @classmethod
    def decode(cls, raw: bytes) -> IndexRow:
        """Raises: ValueError for a row that `encode` did not write."""
        partition, size, stored, project, model, embedder, end_user, tags = raw.decode("ascii").split("|")
        return cls(
            partition=partition,
            size_bytes=int(size),
            stored_ms=int(stored),
            project=project,
            model=model,
            embedder=embedder,
            end_user=end_user,
            tags=tuple(tags.split(",")) if tags else (),
        )
