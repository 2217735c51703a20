"""Who is calling: the API key out of the headers, and the guards that stand on the controllers.

A guard runs before the body is read, so a flood of bad keys costs no parsing. The key itself is compared by
`billing` (HMAC under a pepper, constant time); nothing here logs or echoes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from billing.errors import AuthError, AuthUnavailable, Forbidden
from billing.principal import Principal, Scope
from gateway.errors import PermissionDenied, Unauthenticated, Unavailable

MAX_KEY_CHARS = 512
_KEY_HEADERS = (b"x-api-key", b"api-key")  # Anthropic's and Azure's clients


class Authenticator(Protocol):
    """What turns a key into a principal; `billing` implements it."""

    async def authenticate(self, key: str) -> Principal:
        """The key's principal. Raises: billing's AuthError, Forbidden (suspended), AuthUnavailable (our fault)."""


def extract_key(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The API key from raw ASGI headers: `Authorization: Bearer K` (any case of the scheme), `x-api-key`, `api-key`.

    Raises: Unauthenticated when there is none, it is malformed, or two headers disagree.
    """
    headers = list(headers)
    bearer = [value for name, value in headers if name == b"authorization"]
    named = [value for name, value in headers if name in _KEY_HEADERS]
    if not bearer and not named:
        raise Unauthenticated(
            "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer "
            "auth (i.e. Authorization: Bearer YOUR_KEY).",
        )
    candidates = {_from_bearer(value) for value in bearer} | {_text(value) for value in named}
    if len(bearer) > 1 or len(candidates) != 1:
        raise Unauthenticated("More than one API key was provided; send exactly one.")
    return candidates.pop()


def _from_bearer(value: bytes) -> str:
    scheme, _, rest = value.strip().partition(b" ")
    if scheme.lower() != b"bearer":
        raise Unauthenticated(
            "Incorrect authorization header: use 'Authorization: Bearer YOUR_KEY' or the x-api-key header."
        )
    return _text(rest)


def _text(value: bytes) -> str:
    value = value.strip()
    if not value:
        raise Unauthenticated("You didn't provide an API key: the header is empty.")
    if not value.isascii() or len(value) > MAX_KEY_CHARS or b" " in value:
        raise incorrect_key()
    return value.decode("ascii")


def incorrect_key() -> Unauthenticated:
    """The answer for every key that is not valid: nothing tells an unknown one from a revoked one."""
    return Unauthenticated("Incorrect API key provided. Check it with whoever runs this server.")


async def requires_key(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Guard: a valid key with the inference scope. Leaves the Principal in the connection's state."""
    principal = await _authenticate(connection)
    if not principal.has_scope(Scope.INFERENCE):
        raise PermissionDenied("This API key may not call models: it lacks the scope 'inference'.")


async def requires_any_key(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Guard: any valid key, whatever its scopes; the handler decides what it may see."""
    await _authenticate(connection)


async def _authenticate(connection: ASGIConnection[Any, Any, Any, Any]) -> Principal:
    key = extract_key(connection.scope["headers"])
    authenticator: Authenticator = connection.app.state.authenticator
    try:
        principal = await authenticator.authenticate(key)
    except AuthError as exc:
        raise incorrect_key() from exc
    except Forbidden as exc:
        raise PermissionDenied(str(exc), code="suspended") from exc
    except AuthUnavailable as exc:
        raise Unavailable("API keys cannot be checked at the moment.", retry_after_s=exc.retry_after_s) from exc
    connection.scope["state"]["principal"] = principal
    return principal


def principal_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Principal:
    """The Principal that a guard left. Only for handlers that have one."""
    principal: Principal = connection.scope["state"]["principal"]
    return principal
