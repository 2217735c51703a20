"""Audit log events, as OpenAI's SDK reads them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from billing.tables import AuditEvent
from gateway.schemas.organization.common import unix

Words = tuple[str, ...]


class TimeRange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    gt: int | None = None
    gte: int | None = None
    lt: int | None = None
    lte: int | None = None


class AuditQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Weir keeps no e-mail addresses: `actor_emails` finds nothing."""

    effective_at: TimeRange | None = None
    project_ids: Words = ()
    event_types: Words = ()
    actor_ids: Words = ()
    actor_emails: Words = ()
    resource_ids: Words = ()
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    after: str | None = None
    before: str | None = None


class AuditProject(msgspec.Struct, kw_only=True):
    id: str
    name: str


class AuditApiKey(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["user"] = "user"


class AuditUser(msgspec.Struct, kw_only=True):
    id: str


class AuditSession(msgspec.Struct, kw_only=True):
    user: AuditUser
    ip_address: str | None


class AuditActor(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`api_key` for an act over HTTP; `session` for the command line and Weir itself."""

    type: str
    api_key: AuditApiKey | None = None
    session: AuditSession | None = None


def audit_object(event: AuditEvent, project_names: dict[str, str]) -> dict[str, Any]:
    """One event; its details stand under the event's own type, as OpenAI has them."""
    if event.actor_kind == "key":
        actor = AuditActor(type="api_key", api_key=AuditApiKey(id=event.actor_id))
    else:
        session = AuditSession(user=AuditUser(id=event.actor_id), ip_address=event.ip)
        actor = AuditActor(type="session", session=session)
    shown: dict[str, Any] = {
        "id": event.id,
        "type": event.action,
        "effective_at": unix(event.effective_at),
        "actor": actor,
        event.action: _details(event),
    }
    if event.project_id is not None:
        shown["project"] = AuditProject(id=event.project_id, name=project_names.get(event.project_id, event.project_id))
    return shown


def _details(event: AuditEvent) -> dict[str, Any]:
    if event.action.endswith(".created"):
        return {"id": event.resource_id, "data": event.detail}
    if event.action.endswith(".updated"):
        return {"id": event.resource_id, "changes_requested": _wanted(event.detail)}
    return {"id": event.resource_id}


def _wanted(detail: dict[str, Any]) -> dict[str, Any]:
    """The new values of `{field: {old, new}}`, as a change is asked for."""
    return {
        name: value["new"] if isinstance(value, dict) and "new" in value else value for name, value in detail.items()
    }
