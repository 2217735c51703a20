"""/v1/organization/.../rate_limits and spend_limit."""

from __future__ import annotations

from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from billing.clock import utc_now
from billing.limits import rules
from billing.principal import Actor
from billing.spend import Scope, spent_nano_usd
from billing.tables import LimitRule, Project, Tenant
from billing.windows import window_of
from gateway.admin_auth import administers, operates
from gateway.controllers.admin.base import By, Db
from gateway.controllers.organization.base import (
    InProject,
    Organization,
    OrganizationController,
    object_list,
    refuse_set,
)
from gateway.decoding import BodyDTO
from gateway.errors import NotFound, clip
from gateway.queries import takes_query
from gateway.routing import Router
from gateway.schemas.organization.common import ObjectList
from gateway.schemas.organization.limits import (
    NANO_PER_CENT,
    QUOTA_OF,
    UNSUPPORTED,
    Enforcement,
    RateLimitObject,
    RateLimitQuery,
    RateLimitWrite,
    SpendLimitDeleted,
    SpendLimitObject,
    SpendLimitWrite,
)

_BUDGET = "budget_month"
_PREFIX = "rl-"


class RateLimitController(OrganizationController):
    """One row a model: the models that are routed here and those that have a limit."""

    path = "/v1/organization/projects/{project_id:str}/rate_limits"
    tags = ("Organization",)
    guards = (administers,)

    @get(operation_id="list-project-rate-limits", summary="List a project's rate limits", **takes_query(RateLimitQuery))
    async def list_rate_limits(
        self,
        actor: By,
        project: InProject,
        db: Db,
        router: NamedDependency[Router],
        params: NamedDependency[RateLimitQuery],
    ) -> ObjectList[RateLimitObject]:
        """By model. Raises: NotFound (404)."""
        async with db.read() as session:
            found = await _project_rules(session, actor, project)
        models = sorted({*router.table.names, *(rule.model for rule in found if rule.model)})
        rows = [_rate_limit(model, found) for model in models]
        if params.after is not None:
            rows = [row for row in rows if row.id > params.after]
        if params.before is not None:
            rows = [row for row in rows if row.id < params.before]
        return object_list(rows, params.limit, lambda row: row, lambda each: each.id)

    @post(
        "/{rate_limit_id:path}",
        operation_id="update-project-rate-limits",
        summary="Set a project's rate limits for a model",
        dto=BodyDTO[RateLimitWrite],
        return_dto=None,
        status_code=200,
    )
    async def update_rate_limit(
        self,
        *,
        actor: By,
        project: InProject,
        rate_limit_id: FromPath[str],
        data: JSONBody[RateLimitWrite],
        db: Db,
        router: NamedDependency[Router],
    ) -> RateLimitObject:
        """In force within a second. Raises: NotFound (404) for a model that is not here, InvalidRequest (400)."""
        refuse_set(data, *UNSUPPORTED)
        name = rate_limit_id.lstrip("/")
        model = name.removeprefix(_PREFIX)
        async with db.begin() as session:
            known = {*router.table.names}
            known |= {rule.model for rule in await _project_rules(session, actor, project)}
            if not name.startswith(_PREFIX) or model not in known - {""}:
                raise NotFound(f"no such rate limit: {clip(name)!r}", code="not_found")
            for field, quota in QUOTA_OF.items():
                value = getattr(data, field)
                if value is not None:
                    await rules.set_limit(
                        session,
                        actor,
                        scope_kind="project",
                        scope_id=project.id,
                        quota=quota,
                        model=model,
                        hard=value,
                    )
            return _rate_limit(model, await _project_rules(session, actor, project))


class SpendLimitController(OrganizationController):
    """The hard monthly budget of the organization and of its projects, in the tenant's time zone."""

    path = "/v1/organization"
    tags = ("Organization",)

    @get("/spend_limit", guards=[administers], operation_id="retrieve-spend-limit", summary="Get the spend limit")
    async def get_own(self, actor: By, organization: Organization, db: Db) -> SpendLimitObject:
        """Raises: NotFound (404) when there is none."""
        async with db.read() as session:
            return await _spend_limit(session, actor, organization, "tenant", organization.id)

    @post(
        "/spend_limit",
        guards=[operates],
        operation_id="update-spend-limit",
        summary="Set the spend limit",
        dto=BodyDTO[SpendLimitWrite],
        return_dto=None,
        status_code=200,
    )
    async def set_own(
        self, actor: By, organization: Organization, data: JSONBody[SpendLimitWrite], db: Db
    ) -> SpendLimitObject:
        """What a tenant may spend is the operator's to say: an admin is refused (403)."""
        async with db.begin() as session:
            await _set_budget(session, actor, "tenant", organization.id, data.threshold_amount)
            return await _spend_limit(session, actor, organization, "tenant", organization.id)

    @delete(
        "/spend_limit",
        guards=[operates],
        operation_id="delete-spend-limit",
        summary="Lift the spend limit",
        status_code=200,
    )
    async def delete_own(self, actor: By, organization: Organization, db: Db) -> SpendLimitDeleted:
        """Raises: NotFound (404) when there is none."""
        async with db.begin() as session:
            await rules.remove_limit(session, actor, scope_kind="tenant", scope_id=organization.id, quota=_BUDGET)
        return SpendLimitDeleted(object="organization.spend_limit.deleted")

    @get(
        "/projects/{project_id:str}/spend_limit",
        guards=[administers],
        operation_id="retrieve-project-spend-limit",
        summary="Get a project's spend limit",
    )
    async def get_projects(self, actor: By, organization: Organization, project: InProject, db: Db) -> SpendLimitObject:
        """Raises: NotFound (404) when there is none."""
        async with db.read() as session:
            return await _spend_limit(session, actor, organization, "project", project.id)

    @post(
        "/projects/{project_id:str}/spend_limit",
        guards=[administers],
        operation_id="update-project-spend-limit",
        summary="Set a project's spend limit",
        dto=BodyDTO[SpendLimitWrite],
        return_dto=None,
        status_code=200,
    )
    async def set_projects(
        self, actor: By, organization: Organization, project: InProject, data: JSONBody[SpendLimitWrite], db: Db
    ) -> SpendLimitObject:
        """Raises: NotFound (404), InvalidRequest (400)."""
        async with db.begin() as session:
            await _set_budget(session, actor, "project", project.id, data.threshold_amount)
            return await _spend_limit(session, actor, organization, "project", project.id)

    @delete(
        "/projects/{project_id:str}/spend_limit",
        guards=[administers],
        operation_id="delete-project-spend-limit",
        summary="Lift a project's spend limit",
        status_code=200,
    )
    async def delete_projects(self, actor: By, project: InProject, db: Db) -> SpendLimitDeleted:
        """Raises: NotFound (404) when there is none."""
        async with db.begin() as session:
            await rules.remove_limit(session, actor, scope_kind="project", scope_id=project.id, quota=_BUDGET)
        return SpendLimitDeleted(object="project.spend_limit.deleted")


async def _project_rules(session: AsyncSession, actor: Actor, project: Project) -> list[LimitRule]:
    return await rules.list_limits(session, actor, tenant=project.tenant_id, scope_kind="project", scope_id=project.id)


def _rate_limit(model: str, found: list[LimitRule]) -> RateLimitObject:
    row = RateLimitObject(id=f"{_PREFIX}{model}", model=model)
    for field, quota in QUOTA_OF.items():
        of_quota = {rule.model: rule.hard for rule in found if rule.quota == quota and rule.hard is not None}
        # Both bind, so the tighter one is what the project has.
        values = [of_quota[name] for name in ("", model) if name in of_quota]
        if values:
            setattr(row, field, min(values))
    return row


async def _set_budget(session: AsyncSession, actor: Actor, kind: str, scope_id: str, cents: int) -> None:
    """The soft limit, where there is one, stays."""
    [current] = [*await _budget(session, actor, kind, scope_id), None][:1]
    await rules.set_limit(
        session,
        actor,
        scope_kind=kind,
        scope_id=scope_id,
        quota=_BUDGET,
        hard=cents * NANO_PER_CENT,
        soft=current.soft if current is not None else None,
    )


async def _budget(session: AsyncSession, actor: Actor, kind: str, scope_id: str) -> list[LimitRule]:
    found = await rules.list_limits(session, actor, scope_kind=kind, scope_id=scope_id)
    return [rule for rule in found if rule.quota == _BUDGET and not rule.model]


async def _spend_limit(
    session: AsyncSession, actor: Actor, tenant: Tenant, kind: str, scope_id: str
) -> SpendLimitObject:
    hard = next((rule.hard for rule in await _budget(session, actor, kind, scope_id)), None)
    if hard is None:
        raise NotFound("no spend limit is set", code="not_found")
    window = window_of("month", utc_now(), tenant.time_zone)
    [spent] = await spent_nano_usd(session, [Scope(kind, scope_id, None, window.start, window.end)])
    return SpendLimitObject(
        object="organization.spend_limit" if kind == "tenant" else "project.spend_limit",
        threshold_amount=hard // NANO_PER_CENT,
        enforcement=Enforcement(status="enforcing" if spent >= hard else "inactive"),
    )
