"""What the controllers of both admin APIs share: billing's errors as HTTP, and pages by keyset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from litestar import Controller, Request, Response
from litestar.di import NamedDependency, Provide
from redis.exceptions import RedisError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from billing.db import Database
from billing.errors import BillingError
from billing.principal import Actor
from billing.secrets import ServerSecret
from billing.service import Billing
from gateway.admin_auth import actor_of
from gateway.errors import Unavailable, error_response
from gateway.faults import as_gateway_error
from gateway.schemas.admin.common import Page

# What nearly every handler asks for.
By = NamedDependency[Actor]
Db = NamedDependency[Database]
Secret = NamedDependency[ServerSecret]

# What a driver raises when its server is gone or does not answer in time; SQL's errors are looked at one by one.
_AWAY = (PoolTimeout, RedisError, OSError)
log = logging.getLogger(__name__)

R = TypeVar("R")
V = TypeVar("V")


def billing_error_response(request: Request[Any, Any, Any], exc: BillingError) -> Response[bytes]:
    """What a service refuses with, in OpenAI's envelope. Raises: nothing."""
    return error_response(request, as_gateway_error(exc))


def _db(billing: NamedDependency[Billing]) -> Database:
    return billing.db


def _secret(billing: NamedDependency[Billing]) -> ServerSecret:
    return billing.secret


def database_error_response(request: Request[Any, Any, Any], exc: DBAPIError) -> Response[bytes]:
    """503 when the database is away, 500 for what is a fault of ours. Raises: nothing.

    asyncpg's lost and refused connections come as a bare DBAPIError, SQLite's locked file as OperationalError.
    """
    away = exc.connection_invalidated or type(exc) in (DBAPIError, OperationalError, InterfaceError)
    return away_response(request, exc) if away else error_response(request, exc)


def away_response(request: Request[Any, Any, Any], exc: Exception) -> Response[bytes]:
    """A store of ours is away: 503 with Retry-After, never a 4xx. Raises: nothing."""
    log.warning("%s %s failed: %s", request.method, request.url.path, type(exc).__name__)
    return error_response(request, Unavailable("The books cannot be read at the moment.", retry_after_s=2))


class AdminController(Controller):
    """Base of the admin controllers. Services raise BillingError; nothing is caught in handlers.

    `actor` is who calls: services check his role, narrow what he sees and name him in the audit log.
    """

    dependencies = {  # noqa: RUF012 - Litestar's own way to declare it, as the next
        "actor": Provide(actor_of, sync_to_thread=False),
        "db": Provide(_db, sync_to_thread=False),
        "secret": Provide(_secret, sync_to_thread=False),
    }
    exception_handlers = cast(
        Any,
        {
            BillingError: billing_error_response,
            DBAPIError: database_error_response,
            **dict.fromkeys(_AWAY, away_response),
        },
    )


def page_of(rows: Sequence[R], limit: int, view: Callable[[R], V], *, next_after: Callable[[R], str]) -> Page[V]:
    """The first `limit` of rows that were read one beyond it, so that no COUNT is needed to know of more."""
    shown = rows[:limit]
    return Page(
        data=[view(row) for row in shown],
        has_more=len(rows) > limit,
        first_id=next_after(shown[0]) if shown else None,
        last_id=next_after(shown[-1]) if shown else None,
    )
