"""Tenants and projects: create, list, change, suspend, archive. Every act checks the role and goes to the audit log."""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit
from billing.clock import utc_now
from billing.db import note_change
from billing.errors import Conflict, Forbidden, Invalid, NotFound
from billing.ids import new_id
from billing.principal import SERVICE_TIERS, Actor, Role
from billing.tables import Project, Status, Tenant

MAX_PAGE = 1000
MAX_SETTINGS_BYTES = 16 * 1024
# What of a cache policy bounds the server's memory and work, or is a price: no tenant's admin may set or drop it.
OPERATOR_CACHE_FIELDS = frozenset({"hit_price", "max_answer_bytes", "max_bytes", "max_entries", "shadow_share"})
_SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# Controls, lone surrogates, unassigned code points, line and paragraph separators. Joiners (Cf) belong to scripts.
_UNPRINTABLE = frozenset({"Cc", "Cs", "Cn", "Zl", "Zp"})
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")  # a line reads as another
_ZONES = available_timezones()


def check_slug(slug: str, param: str = "slug") -> str:
    """Raises: Invalid unless 1 to 63 of a-z, 0-9 and inner hyphens."""
    if not _SLUG.fullmatch(slug):
        raise Invalid(f"{param}: {slug[:80]!r} is not 1 to 63 of a-z, 0-9 and inner hyphens", param=param)
    return slug


def check_name(name: str, param: str = "name") -> str:
    """Raises: Invalid unless 1 to 200 characters that can be printed on one line."""
    if not 1 <= len(name) <= 200:
        raise Invalid(f"{param}: must be 1 to 200 characters, got {len(name)}", param=param)
    return check_printable(name, param)


def check_printable(text: str, param: str) -> str:
    """Raises: Invalid naming the first character that a terminal or a page would obey instead of show."""
    for char in text:
        if unicodedata.category(char) in _UNPRINTABLE or char in _TURNING:
            raise Invalid(f"{param}: the character U+{ord(char):04X} cannot be printed", param=param)
    return text


def check_time_zone(name: str) -> str:
    """Raises: Invalid unless the IANA database knows the zone."""
    if name not in _ZONES:
        raise Invalid(f"time_zone: {name[:80]!r} is not in the IANA database", param="time_zone")
    ZoneInfo(name)
    return name


def check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Raises: Invalid unless they are at most 16 KiB as JSON."""
    try:
        size = len(json.dumps(settings).encode())
    except (RecursionError, ValueError) as exc:
        raise Invalid("settings: they cannot be written as JSON", param="settings") from exc
    if size > MAX_SETTINGS_BYTES:
        raise Invalid(f"settings: {size} bytes of JSON are more than {MAX_SETTINGS_BYTES}", param="settings")
    return settings


def check_service(max_service_tier: str | None, max_priority: int | None) -> None:
    """Raises: Invalid for an unknown tier, or an engine priority outside 0 to 2."""
    if max_service_tier is not None and max_service_tier not in SERVICE_TIERS:
        raise Invalid(
            f"max_service_tier: {max_service_tier[:40]!r} is none of {', '.join(SERVICE_TIERS)}",
            param="max_service_tier",
        )
    if max_priority is not None and not 0 <= max_priority <= 2:
        raise Invalid(f"max_priority: {max_priority} is not between 0 and 2", param="max_priority")


def check_within(tenant: Tenant, max_service_tier: str | None, max_priority: int | None) -> None:
    """What a key is to have against what its tenant may give. Raises: Invalid."""
    most = SERVICE_TIERS.index(tenant.max_service_tier)
    if max_service_tier is not None and SERVICE_TIERS.index(max_service_tier) > most:
        raise Invalid(
            f"max_service_tier: {max_service_tier!r} is above {tenant.max_service_tier!r}, the most that tenant "
            f"{tenant.slug!r} may give its keys; an operator sets that",
            param="max_service_tier",
        )
    if max_priority is not None and max_priority < tenant.max_priority:
        raise Invalid(
            f"max_priority: {max_priority} is more urgent than {tenant.max_priority}, the most that tenant "
            f"{tenant.slug!r} may give its keys; an operator sets that",
            param="max_priority",
        )


def _cache_policy_for(actor: Actor, stored: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """`wanted`, with the operator's fields as they are stored unless the actor is one. Raises: Forbidden."""
    if actor.role is Role.OPERATOR:
        return wanted
    stored = stored if isinstance(stored, dict) else {}
    for name in sorted(OPERATOR_CACHE_FIELDS & wanted.keys()):
        if name not in stored or wanted[name] != stored[name]:
            raise Forbidden(f"cache_policy.{name} is set by the operator")
    return {**wanted, **{name: stored[name] for name in OPERATOR_CACHE_FIELDS & stored.keys()}}


def slug_of(name: str) -> str:
    """A slug made from a display name; falls back to a fresh id where nothing usable is left."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-")
    return slug or new_id("p").replace("_", "-")


async def create_tenant(
    session: AsyncSession,
    actor: Actor,
    *,
    slug: str,
    name: str | None = None,
    time_zone: str = "UTC",
    grace_nano_usd: int = 0,
    cache_policy: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    max_service_tier: str = "default",
    max_priority: int = 1,
) -> Tenant:
    """Operators only. Raises: Forbidden, Invalid, Conflict when the slug is taken."""
    audit.require_operator(actor)
    if grace_nano_usd < 0:
        raise Invalid(f"grace_nano_usd: {grace_nano_usd} is below 0", param="grace_nano_usd")
    check_service(max_service_tier, max_priority)
    now = utc_now()
    tenant = Tenant(
        id=new_id("ten"),
        slug=check_slug(slug),
        name=check_name(name or slug),
        status=Status.ACTIVE,
        time_zone=check_time_zone(time_zone),
        grace_nano_usd=grace_nano_usd,
        cache_policy=cache_policy or {},
        settings=check_settings(settings or {}),
        max_service_tier=max_service_tier,
        max_priority=max_priority,
        created_at=now,
        updated_at=now,
    )
    await _insert(session, tenant, f"slug: {slug!r} is taken by another tenant")
    audit.record(session, actor, "tenant.created", tenant.id, tenant_id=tenant.id, detail={"slug": slug})
    return tenant


async def get_tenant(session: AsyncSession, actor: Actor, id_or_slug: str) -> Tenant:
    """Raises: NotFound when absent or foreign."""
    query = sa.select(Tenant).where(sa.or_(Tenant.id == id_or_slug, Tenant.slug == id_or_slug))
    tenant = await session.scalar(query)
    if tenant is None:
        raise NotFound(f"no such tenant: {id_or_slug[:80]!r}")
    try:
        audit.require_reader(actor, tenant.id)
    except NotFound as exc:
        raise NotFound(f"no such tenant: {id_or_slug[:80]!r}") from exc
    return tenant


async def list_tenants(
    session: AsyncSession, actor: Actor, *, after: str | None = None, limit: int = 100
) -> list[Tenant]:
    """By id, keyset-paged. Everybody but an operator sees one: his own."""
    query = sa.select(Tenant).order_by(Tenant.id).limit(_page(limit))
    if actor.role is not Role.OPERATOR:
        query = query.where(Tenant.id == actor.tenant_id)
    if after:
        query = query.where(Tenant.id > after)
    return list(await session.scalars(query))


async def update_tenant(
    session: AsyncSession,
    actor: Actor,
    id_or_slug: str,
    *,
    name: str | None = None,
    time_zone: str | None = None,
    status: Status | None = None,
    grace_nano_usd: int | None = None,
    cache_policy: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    max_service_tier: str | None = None,
    max_priority: int | None = None,
) -> Tenant:
    """None leaves a field alone. An admin may change name, settings and the cache policy but for
    OPERATOR_CACHE_FIELDS; the rest is the operator's. `cache_policy` comes checked: its fields are the cache's.

    Raises: Forbidden, NotFound, Invalid.
    """
    tenant = await get_tenant(session, actor, id_or_slug)
    audit.require_admin(actor, tenant.id)
    if any(value is not None for value in (time_zone, status, grace_nano_usd, max_service_tier, max_priority)):
        audit.require_operator(actor)
    check_service(max_service_tier, max_priority)
    if grace_nano_usd is not None and grace_nano_usd < 0:
        raise Invalid(f"grace_nano_usd: {grace_nano_usd} is below 0", param="grace_nano_usd")
    wanted = {
        "name": check_name(name) if name is not None else None,
        "time_zone": check_time_zone(time_zone) if time_zone is not None else None,
        "status": status,
        "grace_nano_usd": grace_nano_usd,
        "cache_policy": _cache_policy_for(actor, tenant.cache_policy, cache_policy)
        if cache_policy is not None
        else None,
        "settings": check_settings(settings) if settings is not None else None,
        "max_service_tier": max_service_tier,
        "max_priority": max_priority,
    }
    changed = _assign(tenant, wanted)
    if not changed:
        return tenant
    tenant.updated_at = utc_now()
    audit.record(session, actor, "tenant.updated", tenant.id, tenant_id=tenant.id, detail=changed)
    note_change(session, "tenant", tenant.id)
    return tenant


async def create_project(
    session: AsyncSession,
    actor: Actor,
    tenant: str,
    *,
    name: str,
    slug: str | None = None,
    external_key_id: str | None = None,
) -> Project:
    """Raises: Forbidden, NotFound, Invalid, Conflict when the tenant has a project of that slug."""
    owner = await get_tenant(session, actor, tenant)
    audit.require_admin(actor, owner.id)
    project = Project(
        id=new_id("proj"),
        tenant_id=owner.id,
        slug=check_slug(slug or slug_of(name)),
        name=check_name(name),
        status=Status.ACTIVE,
        external_key_id=external_key_id,
        created_at=utc_now(),
        archived_at=None,
    )
    await _insert(session, project, f"slug: tenant {owner.slug!r} has a project {project.slug!r} already")
    audit.record(
        session, actor, "project.created", project.id, tenant_id=owner.id, project_id=project.id, detail={"name": name}
    )
    return project


async def get_project(session: AsyncSession, actor: Actor, project: str, *, tenant: str | None = None) -> Project:
    """By id, or by slug within `tenant` (id). Raises: NotFound when absent or foreign."""
    query = sa.select(Project).where(sa.or_(Project.id == project, Project.slug == project))
    scope = tenant if actor.role is Role.OPERATOR else actor.tenant_id
    if scope is not None:
        query = query.where(Project.tenant_id == scope)
    elif not project.startswith("proj_"):
        raise NotFound(f"no such project: {project[:80]!r} (a slug needs its tenant)")
    found = await session.scalar(query)
    if found is None or (actor.role is Role.MEMBER and actor.project_id != found.id):
        raise NotFound(f"no such project: {project[:80]!r}")
    return found


async def list_projects(
    session: AsyncSession,
    actor: Actor,
    *,
    tenant_id: str | None = None,
    include_archived: bool = False,
    after: str | None = None,
    limit: int = 100,
) -> list[Project]:
    """By id, keyset-paged. An operator may leave the tenant out; a member sees his own project only."""
    query = sa.select(Project).order_by(Project.id).limit(_page(limit))
    if actor.role is not Role.OPERATOR:
        if tenant_id not in (None, actor.tenant_id):
            raise NotFound("no such tenant")
        tenant_id = actor.tenant_id
    if tenant_id is not None:
        query = query.where(Project.tenant_id == tenant_id)
    if actor.role is Role.MEMBER:
        query = query.where(Project.id == actor.project_id)
    if not include_archived:
        query = query.where(Project.status != Status.ARCHIVED)
    if after:
        query = query.where(Project.id > after)
    return list(await session.scalars(query))


async def update_project(
    session: AsyncSession, actor: Actor, project: str, *, tenant: str | None = None, name: str
) -> Project:
    """Rename. Raises: Forbidden, NotFound, Invalid."""
    found = await get_project(session, actor, project, tenant=tenant)
    audit.require_admin(actor, found.tenant_id)
    changed = _assign(found, {"name": check_name(name)})
    if changed:
        audit.record(
            session, actor, "project.updated", found.id, tenant_id=found.tenant_id, project_id=found.id, detail=changed
        )
        note_change(session, "tenant", found.tenant_id)
    return found


async def archive_project(
    session: AsyncSession, actor: Actor, project: str, *, tenant: str | None = None, now: datetime | None = None
) -> Project:
    """Its keys stop working on every gateway; its rows stay. Archiving twice is harmless."""
    found = await get_project(session, actor, project, tenant=tenant)
    audit.require_admin(actor, found.tenant_id)
    if found.status is Status.ARCHIVED:
        return found
    found.status, found.archived_at = Status.ARCHIVED, now or utc_now()
    audit.record(session, actor, "project.archived", found.id, tenant_id=found.tenant_id, project_id=found.id)
    note_change(session, "tenant", found.tenant_id)
    return found


async def _insert(session: AsyncSession, row: Any, message: str) -> None:
    try:
        async with session.begin_nested():
            session.add(row)
    except IntegrityError as exc:
        raise Conflict(message) from exc


def _assign(row: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for field, value in wanted.items():
        old = getattr(row, field)
        if value is not None and value != old:
            setattr(row, field, value)
            changed[field] = {"old": old, "new": value}
    return changed


def _page(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise Invalid(f"limit: {limit} is not between 1 and {MAX_PAGE}", param="limit")
    return limit
