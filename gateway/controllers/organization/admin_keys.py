"""/v1/organization/admin_api_keys: keys that administer the tenant and call no model."""

from __future__ import annotations

from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from billing import keys, tenants
from billing.principal import Actor, Role, Scope
from billing.tables import ApiKey, Tenant
from gateway.admin_auth import administers
from gateway.controllers.admin.base import By, Db, Secret
from gateway.controllers.organization.base import Organization, OrganizationController, object_list
from gateway.controllers.organization.project_keys import expiry
from gateway.decoding import BodyDTO
from gateway.errors import Conflict, NotFound, clip
from gateway.queries import takes_query
from gateway.schemas.organization.common import Deleted, ObjectList
from gateway.schemas.organization.projects import (
    AdminKeyCreate,
    AdminKeyListQuery,
    AdminKeyObject,
    NewAdminKeyObject,
)

_MAX_ADMIN_KEYS = 1000


class AdminKeyController(OrganizationController):
    """Admin keys of the organization."""

    path = "/v1/organization/admin_api_keys"
    tags = ("Organization",)
    guards = (administers,)

    @get(operation_id="admin-api-keys-list", summary="List admin keys", **takes_query(AdminKeyListQuery))
    async def list_admin_keys(
        self, actor: By, organization: Organization, db: Db, params: NamedDependency[AdminKeyListQuery]
    ) -> ObjectList[AdminKeyObject]:
        """Redacted, oldest first unless `order` is desc."""
        async with db.read() as session:
            rows = await keys.list_keys(
                session, actor, tenant_id=organization.id, admin_only=True, limit=_MAX_ADMIN_KEYS
            )
        if params.order == "desc":
            rows = rows[::-1]
        if params.after is not None:
            rows = [
                key for key in rows if (key.id > params.after) == (params.order == "asc") and key.id != params.after
            ]
        return object_list(rows, params.limit, AdminKeyObject.of, lambda each: each.id)

    @post(
        operation_id="admin-api-keys-create",
        summary="Make an admin key",
        dto=BodyDTO[AdminKeyCreate],
        return_dto=None,
        status_code=200,
    )
    async def create_admin_key(
        self, actor: By, organization: Organization, data: JSONBody[AdminKeyCreate], db: Db, secret: Secret
    ) -> NewAdminKeyObject:
        """The plaintext is shown once. Raises: Conflict (409) when the tenant has no active project to hold it."""
        async with db.begin() as session:
            made = await keys.create_key(
                session,
                actor,
                secret,
                await _home_project(session, actor, organization),
                name=data.name,
                role=Role.ADMIN,
                scopes=(Scope.ADMIN, Scope.USAGE_READ),
                expires_at=expiry(data.expires_in_seconds),
            )
            return NewAdminKeyObject.made(made.key, made.plaintext)

    @get("/{key_id:str}", operation_id="admin-api-keys-get", summary="Get an admin key")
    async def get_admin_key(
        self, actor: By, organization: Organization, key_id: FromPath[str], db: Db
    ) -> AdminKeyObject:
        """Raises: NotFound (404)."""
        async with db.read() as session:
            return AdminKeyObject.of(await _admin_key(session, actor, organization, key_id))

    @delete("/{key_id:str}", operation_id="admin-api-keys-delete", summary="Revoke an admin key", status_code=200)
    async def delete_admin_key(self, actor: By, organization: Organization, key_id: FromPath[str], db: Db) -> Deleted:
        """Raises: NotFound (404), PermissionDenied (403) for an operator's key."""
        async with db.begin() as session:
            key = await _admin_key(session, actor, organization, key_id)
            await keys.revoke_key(session, actor, key.id)
        return Deleted(id=key_id, object="organization.admin_api_key.deleted")


async def _home_project(session: AsyncSession, actor: Actor, tenant: Tenant) -> str:
    """Every key belongs to a project: the actor's own where it is this tenant's, else the tenant's first."""
    if actor.tenant_id == tenant.id and actor.project_id is not None:
        return actor.project_id
    projects = await tenants.list_projects(session, actor, tenant_id=tenant.id, limit=1)
    if not projects:
        raise Conflict(f"tenant {tenant.slug!r} has no active project to hold the key", code="conflict")
    return projects[0].id


async def _admin_key(session: AsyncSession, actor: Actor, tenant: Tenant, key_id: str) -> ApiKey:
    key = await keys.get_key(session, actor, key_id)
    if key.tenant_id != tenant.id or key.role == Role.MEMBER or key.revoked_at is not None:
        raise NotFound(f"no such key: {clip(key_id)!r}", code="not_found")
    return key
