"""/v1/organization/audit_logs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from litestar import get
from litestar.di import NamedDependency

from billing import audit
from billing.tables import Project
from gateway.admin_auth import administers
from gateway.controllers.admin.base import By, Db
from gateway.controllers.organization.base import Organization, OrganizationController, object_list
from gateway.queries import takes_query
from gateway.schemas.organization.audit import AuditQuery, TimeRange, audit_object
from gateway.schemas.organization.common import ObjectList


class AuditLogController(OrganizationController):
    """Who changed what in the organization, newest first."""

    path = "/v1/organization/audit_logs"
    tags = ("Organization",)
    guards = (administers,)

    @get(operation_id="list-audit-logs", summary="List audit events", **takes_query(AuditQuery))
    async def list_audit_logs(
        self, actor: By, organization: Organization, db: Db, params: NamedDependency[AuditQuery]
    ) -> ObjectList[dict[str, Any]]:
        """Raises: InvalidRequest (400)."""
        since, until = _bounds(params.effective_at or TimeRange())
        async with db.read() as session:
            rows = await audit.list_events(
                session,
                actor,
                tenant_id=organization.id,
                project_ids=params.project_ids,
                actions=params.event_types,
                actor_ids=params.actor_ids,
                resource_ids=params.resource_ids,
                since=since,
                until=until,
                after=params.after,
                before=params.before,
                limit=params.limit + 1,
            )
            projects = {event.project_id for event in rows} - {None}
            found = await session.execute(sa.select(Project.id, Project.name).where(Project.id.in_(projects)))
            names = {row.id: row.name for row in found}
        if params.actor_emails:
            rows = []
        return object_list(rows, params.limit, lambda event: audit_object(event, names), lambda each: str(each["id"]))


def _bounds(asked: TimeRange) -> tuple[datetime | None, datetime | None]:
    """[since, until) from whole seconds, inclusive or not."""
    starts = [asked.gte, asked.gt + 1 if asked.gt is not None else None]
    ends = [asked.lt, asked.lte + 1 if asked.lte is not None else None]
    since = max((second for second in starts if second is not None), default=None)
    until = min((second for second in ends if second is not None), default=None)
    return _moment(since), _moment(until)


def _moment(second: int | None) -> datetime | None:
    return None if second is None else datetime.fromtimestamp(second, UTC)
