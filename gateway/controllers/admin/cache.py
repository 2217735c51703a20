"""/admin/v1/tenants/{tenant}/cache: what the answer cache holds of a tenant, and taking answers back."""

from __future__ import annotations

from typing import Any

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from billing import audit, tenants
from cache.invalidation import Invalidator, Selection
from gateway.admin_auth import administers
from gateway.controllers.admin.base import AdminController, By, Db
from gateway.decoding import BodyDTO
from gateway.errors import NotFound
from gateway.schemas.admin.cache import CacheInvalidate, Removed, Usage

Cache = NamedDependency[Any]  # Invalidator | None: Litestar's signature model takes no optional class of ours


class CacheController(AdminController):
    """The answer cache; the engine's KV cache is not this one."""

    path = "/admin/v1/tenants/{tenant:str}/cache"
    tags = ("Admin: cache",)
    guards = (administers,)

    @get(operation_id="GetCacheUsage", summary="What is held of a tenant's answers")
    async def get_usage(self, actor: By, tenant: FromPath[str], db: Db, invalidator: Cache) -> Usage:
        """Raises: NotFound (404) for a foreign tenant, and where the cache is off."""
        async with db.read() as session:
            owner = await tenants.get_tenant(session, actor, tenant)
        return await _on(invalidator).usage(owner.id)

    @post(
        "/invalidate",
        operation_id="InvalidateCache",
        summary="Take cached answers back",
        dto=BodyDTO[CacheInvalidate],
        return_dto=None,
        status_code=200,
    )
    async def invalidate(
        self, actor: By, tenant: FromPath[str], data: JSONBody[CacheInvalidate], db: Db, invalidator: Cache
    ) -> Removed:
        """In force when this answers. Raises: NotFound (404), Unavailable (503) when the cache's Redis is away."""
        cache = _on(invalidator)
        async with db.begin() as session:
            owner = await tenants.get_tenant(session, actor, tenant)
            audit.require_admin(actor, owner.id)
            project = None
            if data.project is not None:
                project = (await tenants.get_project(session, actor, data.project, tenant=owner.id)).id
            if not data.dry_run:
                detail = data.chosen()
                audit.record(session, actor, "cache.invalidated", owner.id, tenant_id=owner.id, detail=detail)
        chosen = Selection(project=project, model=data.model, tag=data.tag, end_user=data.end_user)
        return await cache.invalidate(owner.id, chosen, dry_run=data.dry_run)


def _on(invalidator: Invalidator | None) -> Invalidator:
    if invalidator is None:
        raise NotFound("the answer cache is off on this server", code="not_found")
    return invalidator
