"""/admin/v1/limits: what a tenant, a project or a key may use and spend. Changes are in force within a second."""

from __future__ import annotations

from litestar import delete, get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody

from billing.limits import rules
from billing.limits.status import limit_status
from billing.service import Billing
from gateway.admin_auth import administers, reads_books
from gateway.controllers.admin.base import AdminController, By, Db
from gateway.decoding import BodyDTO
from gateway.queries import takes_query
from gateway.schemas.admin.limits import LimitKey, LimitQuery, LimitSet, LimitStatusQuery, LimitView, parse_amount
from gateway.schemas.usage import Left


class LimitController(AdminController):
    """Rules by scope, quota and model."""

    path = "/admin/v1/limits"
    tags = ("Admin: limits",)

    @get(guards=[reads_books], operation_id="ListLimits", summary="List limits", **takes_query(LimitQuery))
    async def list_limits(self, actor: By, db: Db, params: NamedDependency[LimitQuery]) -> list[LimitView]:
        """A member sees those of his project and key. Raises: NotFound (404) for a foreign tenant."""
        async with db.read() as session:
            found = await rules.list_limits(
                session,
                actor,
                tenant=params.tenant,
                scope_kind=params.scope,
                scope_id=params.scope_id,
            )
        return [LimitView.of(rule) for rule in found]

    @get(
        "/status",
        guards=[reads_books],
        operation_id="GetLimitStatus",
        summary="What is left of every limit",
        **takes_query(LimitStatusQuery),
    )
    async def get_status(
        self, actor: By, billing: NamedDependency[Billing], params: NamedDependency[LimitStatusQuery]
    ) -> list[Left]:
        """Live, with what running requests hold. Raises: NotFound (404), Unavailable (503) while Redis is away."""
        tenant = params.tenant or actor.tenant_id
        assert tenant is not None  # every key has one
        async with billing.db.read() as session:
            found = await limit_status(billing.redis, session, actor, tenant=tenant)
        return [Left.of(status) for status in found]

    @put(guards=[administers], operation_id="SetLimit", summary="Set a limit", dto=BodyDTO[LimitSet], return_dto=None)
    async def set_limit(self, actor: By, data: JSONBody[LimitSet], db: Db) -> LimitView:
        """A tenant's own limits are the operator's to set. Raises: InvalidRequest (400), PermissionDenied (403)."""
        async with db.begin() as session:
            rule = await rules.set_limit(
                session,
                actor,
                scope_kind=data.scope,
                scope_id=data.scope_id,
                quota=data.quota,
                hard=parse_amount(data.quota, data.hard, param="hard"),
                soft=parse_amount(data.quota, data.soft, param="soft"),
                model=data.model,
            )
            return LimitView.of(rule)

    @delete(guards=[administers], operation_id="RemoveLimit", summary="Lift a limit", **takes_query(LimitKey))
    async def remove_limit(self, actor: By, db: Db, params: NamedDependency[LimitKey]) -> None:
        """Raises: NotFound (404) when there is no such rule."""
        async with db.begin() as session:
            await rules.remove_limit(
                session,
                actor,
                scope_kind=params.scope,
                scope_id=params.scope_id,
                quota=params.quota,
                model=params.model,
            )
