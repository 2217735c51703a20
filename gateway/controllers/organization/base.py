"""What the controllers of OpenAI's organization API share: whose organization it is, and their lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from litestar import Request
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath

from billing import tenants
from billing.db import Database
from billing.principal import Actor
from billing.tables import Project, Tenant
from gateway.auth import principal_of
from gateway.controllers.admin.base import AdminController
from gateway.errors import InvalidRequest
from gateway.schemas.organization.common import ObjectList

R = TypeVar("R")
V = TypeVar("V")


async def organization_of(
    request: Request[Any, Any, Any], actor: NamedDependency[Actor], db: NamedDependency[Database]
) -> Tenant:
    """The tenant a call is about: the key's own, or what an operator names in `OpenAI-Organization` (id or slug).

    Raises: NotFound (404) for a foreign or unknown one.
    """
    principal = principal_of(request)
    named = request.headers.get("openai-organization")
    async with db.read() as session:
        return await tenants.get_tenant(session, actor, named or principal.tenant_id)


async def project_of(
    actor: NamedDependency[Actor],
    organization: NamedDependency[Tenant],
    project_id: FromPath[str],
    db: NamedDependency[Database],
) -> Project:
    """The project that the path names. Raises: NotFound (404), for a foreign one too."""
    async with db.read() as session:
        return await tenants.get_project(session, actor, project_id, tenant=organization.id)


Organization = NamedDependency[Tenant]
InProject = NamedDependency[Project]


class OrganizationController(AdminController):
    """An organization is a tenant. Handlers pass its id to every service, so that an operator too stays within it."""

    dependencies = {  # noqa: RUF012 - Litestar's own way to declare it
        **AdminController.dependencies,
        "organization": Provide(organization_of),
        "project": Provide(project_of),
    }


def object_list(rows: Sequence[R], limit: int, view: Callable[[R], V], id_of: Callable[[V], str]) -> ObjectList[V]:
    """The first `limit` of rows that were read one beyond it."""
    data = [view(row) for row in rows[:limit]]
    return ObjectList(
        data=data,
        first_id=id_of(data[0]) if data else None,
        last_id=id_of(data[-1]) if data else None,
        has_more=len(rows) > limit,
    )


def refuse_set(data: Any, *names: str) -> None:
    """Raises: InvalidRequest for a field that OpenAI has and Weir has no counterpart of, when it is given."""
    for name in names:
        if getattr(data, name) is not None:
            raise InvalidRequest(f"'{name}' cannot be set on this server.", param=name, code="unsupported_parameter")
