"""The one place where other rooms' errors become ours: billing's, the engine's, the cache's and the upstreams'."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response

from billing import errors as billing
from cache.errors import InvalidCacheControl, LeaderFailed
from engine import errors as engine
from gateway.errors import (
    BodyTooLarge,
    Conflict,
    DeterministicServerError,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    RateLimited,
    ServerError,
    Unavailable,
    UpstreamUnavailable,
    error_response,
)
from gateway.upstreams.base import UpstreamError

# What `as_gateway_error` knows; anything else is a bug of ours and is logged with its traceback.
KNOWN = (billing.BillingError, engine.EngineError, InvalidCacheControl, LeaderFailed, UpstreamError)

_TOKEN_LIMITS = frozenset({"tpm", "tpd", "max_tokens_per_request"})


def known_error_response(request: Request[Any, Any, Any], exc: Exception) -> Response[bytes]:
    """Litestar's exception handler for KNOWN, wherever in a handler they were raised."""
    return error_response(request, as_gateway_error(exc))


def as_gateway_error(exc: Exception) -> GatewayError:
    """The refusal that the caller gets for `exc`."""
    if isinstance(exc, GatewayError):
        return exc
    if isinstance(exc, billing.BillingError):
        return _from_billing(exc)
    if isinstance(exc, engine.EngineError):
        return _from_engine(exc)
    if isinstance(exc, UpstreamError):
        return _from_upstream(exc)
    if isinstance(exc, InvalidCacheControl):
        return InvalidRequest(str(exc), param=exc.param, code="invalid_value")
    if isinstance(exc, LeaderFailed):
        return UpstreamUnavailable("The generation that this answer was shared with failed.")
    return ServerError()


def _from_billing(exc: billing.BillingError) -> GatewayError:
    if isinstance(exc, billing.QuotaDenied):
        return quota_error(exc)
    if isinstance(exc, billing.UnknownPrice):
        # Never free and never a guess; the operator has to set a price, so trying again soon is useless.
        return Unavailable(
            "This model has no price in force and is not served until it has one.",
            code="unknown_price",
            retry_after_s=60,
        )
    if isinstance(exc, billing.Unavailable):
        return Unavailable(str(exc), retry_after_s=exc.retry_after_s)
    if isinstance(exc, billing.Forbidden):
        return PermissionDenied(str(exc))
    if isinstance(exc, billing.NotFound):
        return NotFound(str(exc), code="not_found")
    if isinstance(exc, billing.Conflict):
        return Conflict(str(exc), code="conflict")
    if isinstance(exc, billing.Invalid):
        return InvalidRequest(str(exc), param=exc.param, code="invalid_value")
    return ServerError()


def quota_error(exc: billing.QuotaDenied) -> GatewayError:
    """Names the scope and the limit that refused, by code; amounts stay with the admins."""
    of_model = f" for the model `{exc.model}`" if exc.model else ""
    what = f"the {exc.limit} limit of this {exc.scope}{of_model}"
    headers = {"x-weir-limit": f"{exc.scope}:{exc.limit}"}
    if exc.money:
        return QuotaExceeded(
            f"You exceeded your current quota: {what} is used up. Please check your plan and billing details.",
            retry_after_s=exc.retry_after_s,
            headers=headers,
        )
    if exc.too_large and exc.limit in _TOKEN_LIMITS:
        return BodyTooLarge(
            f"Request too large: it alone passes {what}. Reduce the prompt or the tokens asked for.",
            type="tokens",
            code="rate_limit_exceeded",
            headers={**headers, "x-should-retry": "false"},
        )
    return RateLimited(
        f"Rate limit reached: {what}. Please try again later.",
        type="tokens" if exc.limit in _TOKEN_LIMITS else "requests",
        retry_after_s=exc.retry_after_s or 1.0,
        # A limit of no requests at all: waiting does not help.
        headers={**headers, "x-should-retry": "false"} if exc.too_large else headers,
    )


def _from_engine(exc: engine.EngineError) -> GatewayError:
    if isinstance(exc, engine.InvalidRequest):
        return InvalidRequest(str(exc), param=exc.param, code=exc.code)
    if isinstance(exc, engine.QueueFull):
        return Overloaded("The server is overloaded: its queue is full.", retry_after_s=exc.retry_after_s)
    if isinstance(exc, engine.EngineUnavailable):
        return Unavailable("The model is not available at the moment.", retry_after_s=2)
    return DeterministicServerError()


def _from_upstream(exc: UpstreamError) -> GatewayError:
    status = exc.status
    if status == 404:
        return ModelNotFound("")
    if status == 429:
        return RateLimited(str(exc), retry_after_s=exc.retry_after_s or 1.0, code=exc.code or "rate_limit_exceeded")
    if status is not None and 400 <= status < 500 and not exc.retryable:
        return InvalidRequest(str(exc), param=exc.param, code=exc.code)
    if exc.retryable:
        return UpstreamUnavailable(str(exc), retry_after_s=exc.retry_after_s or 1.0)
    return DeterministicServerError()
