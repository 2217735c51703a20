"""From a presented key to a Principal: a bounded cache in the process, SQL behind it, revocation by pub/sub.

While SQL is away a cached key keeps working and an unknown one gets AuthUnavailable, never InvalidKey: no 401 for our
own fault. A made-up key is refused by its tag without a query; a deleted one by a bounded negative cache.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from billing import keys
from billing.bus import ChangeBus
from billing.clock import Clock, utc_now
from billing.db import Database
from billing.errors import AuthUnavailable, Forbidden, InvalidKey, KeyExpired
from billing.principal import SERVICE_TIERS, Principal, Role
from billing.secrets import ServerSecret
from billing.tables import ApiKey, Project, Status, Tenant

TTL_S = 5.0  # how long a cached key is believed while the bus is listening
TTL_DEAF_S = 0.5  # and while it is not: revocation stays effective within a second
NEGATIVE_TTL_S = 5.0
MAX_STALE_S = 3600.0  # how long a cached key may be used while SQL is away
MAX_CACHED = 20_000
MAX_NEGATIVE = 10_000
LOOKUP_TIMEOUT_S = 2.0
log = logging.getLogger(__name__)


class _Found(msgspec.Struct):
    principal: Principal
    digest: bytes
    secret_version: int
    previous_digest: bytes | None
    previous_secret_version: int | None
    previous_until: datetime | None
    expires_at: datetime | None
    revoked: bool
    suspended: str | None
    read_at: float


class Authenticator:
    """One a process. `monotonic` and `clock` are passed in by tests."""

    def __init__(
        self,
        db: Database,
        secret: ServerSecret,
        *,
        bus: ChangeBus | None = None,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._secret = secret
        self._bus = bus
        self._clock = clock
        self._monotonic = monotonic
        self._cache: OrderedDict[str, _Found] = OrderedDict()
        self._negative: OrderedDict[str, float] = OrderedDict()
        self._lookups: dict[str, asyncio.Task[_Found | None]] = {}
        self._generation = 0
        self._last_used: dict[str, datetime] = {}
        if bus is not None:
            bus.listen(self._on_change)

    async def authenticate(self, presented: str) -> Principal:
        """The key's principal. The presented text appears in no message, log or exception.

        Raises: InvalidKey, KeyExpired, Forbidden (tenant or project suspended), AuthUnavailable.
        """
        public_id, secret_part = keys.split(presented, self._secret)
        found = self._fresh(public_id)
        if found is None:
            found = await self._find(public_id)
        self._check(found, public_id, secret_part)
        self._last_used[found.principal.key_id] = self._clock()
        return found.principal

    def _fresh(self, public_id: str) -> _Found | None:
        now = self._monotonic()
        refused_at = self._negative.get(public_id)
        if refused_at is not None and now - refused_at < self._ttl(NEGATIVE_TTL_S):
            raise InvalidKey("the API key is unknown")
        found = self._cache.get(public_id)
        if found is None or now - found.read_at >= self._ttl(TTL_S):
            return None
        self._cache.move_to_end(public_id)
        return found

    def _ttl(self, normal: float) -> float:
        return normal if self._bus is not None and self._bus.connected else TTL_DEAF_S

    async def _find(self, public_id: str) -> _Found:
        task = self._lookups.get(public_id)
        if task is None:
            task = asyncio.create_task(self._look_up(public_id))
            self._lookups[public_id] = task
            task.add_done_callback(lambda _: self._lookups.pop(public_id, None))
        try:
            found = await asyncio.shield(task)
        except (SQLAlchemyError, DBAPIError, OSError, TimeoutError) as exc:
            stale = self._cache.get(public_id)
            if stale is not None and self._monotonic() - stale.read_at < MAX_STALE_S:
                return stale
            log.warning("a key could not be looked up: %s", type(exc).__name__)
            raise AuthUnavailable("keys cannot be looked up at the moment; try again") from exc
        if found is None:
            raise InvalidKey("the API key is unknown")
        return found

    async def _look_up(self, public_id: str) -> _Found | None:
        generation, started = self._generation, self._monotonic()
        query = (
            sa.select(ApiKey, Project, Tenant)
            .join(Project, Project.id == ApiKey.project_id)
            .join(Tenant, Tenant.id == ApiKey.tenant_id)
            .where(ApiKey.public_id == public_id)
        )
        async with asyncio.timeout(LOOKUP_TIMEOUT_S), self._db.read() as session:
            row = (await session.execute(query)).one_or_none()
        found = _found(*row, read_at=started) if row is not None else None
        if generation != self._generation:  # a change came in while we read: the answer serves this once, is not kept
            return found
        if found is None:
            _remember(self._negative, public_id, started, MAX_NEGATIVE)
        else:
            _remember(self._cache, public_id, found, MAX_CACHED)
        return found

    def _check(self, found: _Found, public_id: str, secret_part: str) -> None:
        now = self._clock()
        current = self._matches(found.digest, found.secret_version, public_id, secret_part)
        previous = False
        if found.previous_digest is not None and found.previous_secret_version is not None:
            previous = self._matches(found.previous_digest, found.previous_secret_version, public_id, secret_part)
        if not current and not previous:
            raise InvalidKey("the API key is wrong")
        if found.revoked:
            raise InvalidKey("the API key is revoked")
        if not current and (found.previous_until is None or found.previous_until <= now):
            raise KeyExpired("the API key was rotated and its grace period is over")
        if found.expires_at is not None and found.expires_at <= now:
            raise KeyExpired("the API key has expired")
        if found.suspended is not None:
            raise Forbidden(found.suspended)

    def _matches(self, digest: bytes, version: int, public_id: str, secret_part: str) -> bool:
        try:
            pepper = self._secret.pepper(version)
        except KeyError as exc:  # the operator took the version away too early: our fault, not the caller's
            raise AuthUnavailable(f"server secret version {version} is missing on this gateway") from exc
        return hmac.compare_digest(digest, keys.digest(secret_part, public_id, pepper))

    def _on_change(self, kind: str, id: str) -> None:
        if kind == "key":
            self._generation += 1
            self._cache.pop(id, None)  # it may be revoked: no stale answer, SQL away or not
            self._negative.pop(id, None)
        elif kind == "tenant":
            self._generation += 1
            for public_id, found in self._cache.items():
                if found.principal.tenant_id == id:
                    self._expire(public_id)
        elif kind == "all":
            self._generation += 1
            self._negative.clear()
            for public_id in self._cache:
                self._expire(public_id)

    def _expire(self, public_id: str) -> None:
        """Ask SQL again at the next use; kept, so that a gap in the bus while SQL is away locks nobody out."""
        found = self._cache.get(public_id)
        if found is not None:
            found.read_at = min(found.read_at, self._monotonic() - TTL_S)

    async def flush_last_used(self) -> int:
        """Write the moments of last use gathered since the last call; returns how many keys. Called once a minute."""
        seen, self._last_used = self._last_used, {}
        if not seen:
            return 0
        try:
            async with self._db.begin() as session:
                await session.execute(
                    sa.update(ApiKey), [{"id": id, "last_used_at": moment} for id, moment in seen.items()]
                )
        except (SQLAlchemyError, OSError):
            self._last_used = seen | self._last_used
            raise
        return len(seen)


def _portable(tenant: Tenant) -> dict[str, Any]:
    """The stored cache policy; where a hold's record could not carry it, whether it is off and what a hit costs."""
    policy: Any = tenant.cache_policy
    if not isinstance(policy, dict):
        log.warning("the stored cache policy of tenant %s is not used: it is no object", tenant.slug)
        return {}
    try:
        msgspec.msgpack.encode(policy)
    except (OverflowError, RecursionError):
        log.warning("the stored cache policy of tenant %s is not used: it holds numbers beyond 64 bits", tenant.slug)
        kept: dict[str, Any] = {"enabled": False} if policy.get("enabled") is False else {}
        if "hit_price" in policy:
            kept["hit_price"] = str(policy["hit_price"])[:20]
        return kept
    return policy


def _found(key: ApiKey, project: Project, tenant: Tenant, *, read_at: float) -> _Found:
    suspended = None
    if tenant.status is not Status.ACTIVE:
        suspended = f"tenant {tenant.slug!r} is {tenant.status.value}"
    elif project.status is not Status.ACTIVE:
        suspended = f"project {project.slug!r} is {project.status.value}"
    principal = Principal(
        tenant_id=tenant.id,
        tenant_slug=tenant.slug,
        project_id=project.id,
        project_slug=project.slug,
        key_id=key.id,
        key_name=key.name,
        scopes=frozenset(key.scopes),
        role=Role(key.role),
        allowed_models=tuple(key.allowed_models) if key.allowed_models is not None else None,
        max_service_tier=min(key.max_service_tier, tenant.max_service_tier, key=SERVICE_TIERS.index),
        max_priority=max(key.max_priority, tenant.max_priority),  # smaller is more urgent
        time_zone=tenant.time_zone,
        grace_nano_usd=tenant.grace_nano_usd,
        cache_policy=_portable(tenant),
        tags=key.tags,
    )
    return _Found(
        principal=principal,
        digest=key.digest,
        secret_version=key.secret_version,
        previous_digest=key.previous_digest,
        previous_secret_version=key.previous_secret_version,
        previous_until=key.previous_until,
        expires_at=key.expires_at,
        revoked=key.revoked_at is not None,
        suspended=suspended,
        read_at=read_at,
    )


def _remember(cache: OrderedDict[str, Any], key: str, value: Any, size: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > size:
        cache.popitem(last=False)
