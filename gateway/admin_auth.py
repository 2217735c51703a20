"""Who may use the admin APIs: guards that stand beside the paths, and the Actor that billing's services check again.

| guard | passes |
|---|---|
| `reads_books` | a key with the scope admin or usage:read |
| `administers` | a key with the scope admin and the role admin or operator |
| `operates` | a key with the scope admin and the role operator |

A key for inference alone opens none of them. Which tenant's things a caller sees is not decided here: the services
of `billing` do, by the Actor, and answer for a foreign tenant as for one that is not there.
"""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from billing.principal import Actor, Role, Scope
from gateway.auth import principal_of, requires_any_key
from gateway.errors import PermissionDenied

Connection = ASGIConnection[Any, Any, Any, Any]


async def reads_books(connection: Connection, handler: BaseRouteHandler) -> None:
    """Guard: may read usage and settings of what is its own."""
    await requires_any_key(connection, handler)
    principal = principal_of(connection)
    if not (principal.has_scope(Scope.ADMIN) or principal.has_scope(Scope.USAGE_READ)):
        raise PermissionDenied("This API key may not read usage: it lacks the scopes 'usage:read' and 'admin'.")


async def administers(connection: Connection, handler: BaseRouteHandler) -> None:
    """Guard: may change what belongs to its tenant."""
    await requires_any_key(connection, handler)
    _require_role(connection, Role.ADMIN, Role.OPERATOR)


async def operates(connection: Connection, handler: BaseRouteHandler) -> None:
    """Guard: may change everything."""
    await requires_any_key(connection, handler)
    _require_role(connection, Role.OPERATOR)


def _require_role(connection: Connection, *roles: Role) -> None:
    principal = principal_of(connection)
    if not principal.has_scope(Scope.ADMIN):
        raise PermissionDenied("This API key may not administer: it lacks the scope 'admin'.")
    if principal.role not in roles:
        raise PermissionDenied(f"This needs a key with the role {' or '.join(repr(str(role)) for role in roles)}.")


def actor_of(request: Request[Any, Any, Any]) -> Actor:
    """Who acts, with the request's id and address for the audit log. Only behind one of the guards."""
    client = request.client
    return Actor.of(
        principal_of(request),
        request_id=request.scope["state"].get("request_id"),
        ip=client.host if client is not None else None,
    )
