"""GET /v1/usage: a key asks what was spent, what is left and when it resets."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from litestar import Request, get
from litestar.di import NamedDependency
from sqlalchemy.ext.asyncio import AsyncSession

from billing.clock import utc_now
from billing.limits.status import limit_status
from billing.money import format_usd
from billing.principal import Principal, Role
from billing.service import Billing
from billing.spend import Scope, spent_nano_usd
from billing.windows import window_of
from gateway.admin_auth import reads_books
from gateway.auth import principal_of
from gateway.controllers.admin.base import AdminController, By
from gateway.schemas.usage import Left, OwnUsage, Spent

_PERIODS: tuple[Literal["day", "week", "month"], ...] = ("day", "week", "month")


class UsageController(AdminController):
    """The calling key's own account."""

    path = "/v1/usage"
    tags = ("Usage",)

    @get(guards=[reads_books], operation_id="GetOwnUsage", summary="What was spent, what is left, when it resets")
    async def get_own_usage(
        self, request: Request[Any, Any, Any], actor: By, billing: NamedDependency[Billing]
    ) -> OwnUsage:
        """Needs the scope usage:read. Raises: Unavailable (503) when the counters cannot be read."""
        principal = principal_of(request)
        now = utc_now()
        ids = (principal.key_id, principal.project_id, principal.tenant_id)
        async with billing.db.read() as session:
            limits = await limit_status(
                billing.redis, session, actor, tenant=principal.tenant_id, scope_ids=ids, now=now
            )
            spent = await _spent(session, principal, now, with_tenant=actor.role is not Role.MEMBER)
        return OwnUsage(
            tenant=principal.tenant_slug,
            project=principal.project_slug,
            key_id=principal.key_id,
            key_name=principal.key_name,
            time_zone=principal.time_zone,
            spent=spent,
            limits=[Left.of(status) for status in limits],
        )


async def _spent(session: AsyncSession, principal: Principal, now: datetime, *, with_tenant: bool) -> list[Spent]:
    """By key, project and, for its admins, tenant: a project's member does not see what the others spend."""
    owners: list[tuple[Literal["tenant", "project", "key"], str]] = [
        ("key", principal.key_id),
        ("project", principal.project_id),
    ]
    if with_tenant:
        owners.append(("tenant", principal.tenant_id))
    windows = {period: window_of(period, now, principal.time_zone) for period in _PERIODS}
    wanted = [(kind, id, period) for kind, id in owners for period in _PERIODS]
    scopes = [Scope(kind, id, None, windows[period].start, windows[period].end) for kind, id, period in wanted]
    sums = await spent_nano_usd(session, scopes)
    return [
        Spent(
            scope=kind,
            period=period,
            amount_usd=format_usd(total),
            amount_nano_usd=total,
            since=windows[period].start,
            resets_at=windows[period].end,
        )
        for (kind, _, period), total in zip(wanted, sums, strict=True)
    ]
