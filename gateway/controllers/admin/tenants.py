"""/admin/v1/tenants and /admin/v1/projects: who pays, and for which business line."""

from __future__ import annotations

from litestar import get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from billing import tenants
from billing.money import parse_usd
from billing.tables import Status
from gateway.admin_auth import administers, operates, reads_books
from gateway.controllers.admin.base import AdminController, By, Db, page_of
from gateway.decoding import BodyDTO
from gateway.errors import InvalidRequest
from gateway.queries import takes_query
from gateway.schemas.admin.common import Page, PageQuery
from gateway.schemas.admin.tenants import (
    ProjectCreate,
    ProjectQuery,
    ProjectUpdate,
    ProjectView,
    TenantCreate,
    TenantUpdate,
    TenantView,
)


class TenantController(AdminController):
    """Tenants by id or slug. Everybody but an operator sees one: his own."""

    path = "/admin/v1/tenants"
    tags = ("Admin: tenants",)

    @get(guards=[reads_books], operation_id="ListTenants", summary="List tenants", **takes_query(PageQuery))
    async def list_tenants(self, actor: By, db: Db, params: NamedDependency[PageQuery]) -> Page[TenantView]:
        async with db.read() as session:
            rows = await tenants.list_tenants(session, actor, after=params.after, limit=params.limit + 1)
        return page_of(rows, params.limit, TenantView.of, next_after=lambda row: row.id)

    @post(
        guards=[operates],
        operation_id="CreateTenant",
        summary="Make a tenant",
        dto=BodyDTO[TenantCreate],
        return_dto=None,
    )
    async def create_tenant(self, actor: By, data: JSONBody[TenantCreate], db: Db) -> TenantView:
        """Raises: InvalidRequest (400), Conflict (409) when the slug is taken."""
        async with db.begin() as session:
            made = await tenants.create_tenant(
                session,
                actor,
                slug=data.slug,
                name=data.name,
                time_zone=data.time_zone,
                grace_nano_usd=parse_usd(data.grace_usd, param="grace_usd"),
                cache_policy=data.cache_policy.as_dict() if data.cache_policy is not None else None,
                settings=data.settings,
                max_service_tier=data.max_service_tier,
                max_priority=data.max_priority,
            )
            return TenantView.of(made)

    @get("/{tenant:str}", guards=[reads_books], operation_id="GetTenant", summary="Get a tenant")
    async def get_tenant(self, actor: By, tenant: FromPath[str], db: Db) -> TenantView:
        """Raises: NotFound (404), for a foreign one too."""
        async with db.read() as session:
            return TenantView.of(await tenants.get_tenant(session, actor, tenant))

    @patch(
        "/{tenant:str}",
        guards=[administers],
        operation_id="UpdateTenant",
        summary="Change a tenant",
        dto=BodyDTO[TenantUpdate],
        return_dto=None,
    )
    async def update_tenant(self, actor: By, tenant: FromPath[str], data: JSONBody[TenantUpdate], db: Db) -> TenantView:
        """An admin may change name, settings and the cache policy but for its caps; the rest is the operator's."""
        async with db.begin() as session:
            changed = await tenants.update_tenant(
                session,
                actor,
                tenant,
                name=data.name,
                time_zone=data.time_zone,
                status=Status(data.status) if data.status is not None else None,
                grace_nano_usd=parse_usd(data.grace_usd, param="grace_usd") if data.grace_usd is not None else None,
                cache_policy=data.cache_policy.as_dict() if data.cache_policy is not None else None,
                settings=data.settings,
                max_service_tier=data.max_service_tier,
                max_priority=data.max_priority,
            )
            return TenantView.of(changed)


class ProjectController(AdminController):
    """Projects by id."""

    path = "/admin/v1/projects"
    tags = ("Admin: projects",)

    @get(guards=[reads_books], operation_id="ListProjects", summary="List projects", **takes_query(ProjectQuery))
    async def list_projects(self, actor: By, db: Db, params: NamedDependency[ProjectQuery]) -> Page[ProjectView]:
        """Of all tenants for an operator who names none. Raises: NotFound (404) for a foreign tenant."""
        async with db.read() as session:
            owner = (await tenants.get_tenant(session, actor, params.tenant)).id if params.tenant else None
            rows = await tenants.list_projects(
                session,
                actor,
                tenant_id=owner,
                include_archived=params.include_archived,
                after=params.after,
                limit=params.limit + 1,
            )
        return page_of(rows, params.limit, ProjectView.of, next_after=lambda row: row.id)

    @post(
        guards=[administers],
        operation_id="CreateProject",
        summary="Make a project",
        dto=BodyDTO[ProjectCreate],
        return_dto=None,
    )
    async def create_project(self, actor: By, data: JSONBody[ProjectCreate], db: Db) -> ProjectView:
        """Raises: InvalidRequest (400) when an operator names no tenant, NotFound (404), Conflict (409)."""
        owner = data.tenant or (actor.tenant_id if actor.role != "operator" else None)
        if owner is None:
            raise InvalidRequest("tenant: an operator must name the tenant", param="tenant")
        async with db.begin() as session:
            return ProjectView.of(await tenants.create_project(session, actor, owner, name=data.name, slug=data.slug))

    @get("/{project_id:str}", guards=[reads_books], operation_id="GetProject", summary="Get a project")
    async def get_project(self, actor: By, project_id: FromPath[str], db: Db) -> ProjectView:
        """Raises: NotFound (404), for a foreign one too."""
        async with db.read() as session:
            return ProjectView.of(await tenants.get_project(session, actor, project_id))

    @patch(
        "/{project_id:str}",
        guards=[administers],
        operation_id="UpdateProject",
        summary="Rename a project",
        dto=BodyDTO[ProjectUpdate],
        return_dto=None,
    )
    async def update_project(
        self, actor: By, project_id: FromPath[str], data: JSONBody[ProjectUpdate], db: Db
    ) -> ProjectView:
        async with db.begin() as session:
            return ProjectView.of(await tenants.update_project(session, actor, project_id, name=data.name))

    @post(
        "/{project_id:str}/archive",
        guards=[administers],
        operation_id="ArchiveProject",
        summary="Archive a project",
        status_code=200,
    )
    async def archive_project(self, actor: By, project_id: FromPath[str], db: Db) -> ProjectView:
        """Its keys stop working on every gateway within a second; its rows stay."""
        async with db.begin() as session:
            return ProjectView.of(await tenants.archive_project(session, actor, project_id))
