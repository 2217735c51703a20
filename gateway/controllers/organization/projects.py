"""/v1/organization/projects."""

from __future__ import annotations

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from billing import tenants
from gateway.admin_auth import administers
from gateway.controllers.admin.base import By, Db
from gateway.controllers.organization.base import (
    InProject,
    Organization,
    OrganizationController,
    object_list,
    refuse_set,
)
from gateway.decoding import BodyDTO
from gateway.errors import InvalidRequest
from gateway.queries import takes_query
from gateway.schemas.organization.common import ObjectList
from gateway.schemas.organization.projects import ProjectListQuery, ProjectObject, ProjectWrite


class OrganizationProjectController(OrganizationController):
    """Projects of the organization."""

    path = "/v1/organization/projects"
    tags = ("Organization",)
    guards = (administers,)

    @get(operation_id="list-projects", summary="List projects", **takes_query(ProjectListQuery))
    async def list_projects(
        self, actor: By, organization: Organization, db: Db, params: NamedDependency[ProjectListQuery]
    ) -> ObjectList[ProjectObject]:
        async with db.read() as session:
            rows = await tenants.list_projects(
                session,
                actor,
                tenant_id=organization.id,
                include_archived=params.include_archived,
                after=params.after,
                limit=params.limit + 1,
            )
        return object_list(rows, params.limit, ProjectObject.of, lambda each: each.id)

    @post(
        operation_id="create-project",
        summary="Make a project",
        dto=BodyDTO[ProjectWrite],
        return_dto=None,
        status_code=200,
    )
    async def create_project(
        self, actor: By, organization: Organization, data: JSONBody[ProjectWrite], db: Db
    ) -> ProjectObject:
        """Raises: InvalidRequest (400), Conflict (409) when a project of that name's slug exists."""
        if data.name is None:
            raise InvalidRequest("Missing required parameter: 'name'.", param="name", code="missing_required_parameter")
        refuse_set(data, "geography", "residency")
        async with db.begin() as session:
            made = await tenants.create_project(
                session, actor, organization.id, name=data.name, external_key_id=data.external_key_id
            )
            return ProjectObject.of(made)

    @get("/{project_id:str}", operation_id="retrieve-project", summary="Get a project")
    async def get_project(self, project: InProject) -> ProjectObject:
        """Raises: NotFound (404), for a foreign one too."""
        return ProjectObject.of(project)

    @post(
        "/{project_id:str}",
        operation_id="modify-project",
        summary="Rename a project",
        dto=BodyDTO[ProjectWrite],
        return_dto=None,
        status_code=200,
    )
    async def modify_project(
        self, actor: By, project: InProject, data: JSONBody[ProjectWrite], db: Db
    ) -> ProjectObject:
        """Raises: NotFound (404), InvalidRequest (400)."""
        refuse_set(data, "geography", "residency", "external_key_id")
        async with db.begin() as session:
            if data.name is not None:
                project = await tenants.update_project(session, actor, project.id, name=data.name)
            return ProjectObject.of(project)

    @post("/{project_id:str}/archive", operation_id="archive-project", summary="Archive a project", status_code=200)
    async def archive_project(self, actor: By, project: InProject, db: Db) -> ProjectObject:
        """Its keys stop working on every gateway within a second. Raises: NotFound (404)."""
        async with db.begin() as session:
            return ProjectObject.of(await tenants.archive_project(session, actor, project.id))
