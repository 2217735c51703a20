"""GatewayErrors in Anthropic's envelope, for the paths its SDKs call."""

from __future__ import annotations

from typing import Any

from litestar import Request

from gateway.errors import GatewayError, error_response, printable
from gateway.schemas.messages import AnthropicError, AnthropicErrorEnvelope
from gateway.streaming import named_frame

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def envelope(error: GatewayError, request_id: str | None) -> AnthropicErrorEnvelope:
    """The error's body; the parameter is named in the message, as this envelope has no place for it."""
    kind = _TYPES.get(error.status_code, "invalid_request_error" if error.status_code < 500 else "api_error")
    message = error.envelope()["error"]["message"]
    if error.param and error.param not in message:
        message = f"{error.param}: {message}"
    return AnthropicErrorEnvelope(error=AnthropicError(type=kind, message=printable(message)), request_id=request_id)


def anthropic_error_response(request: Request[Any, Any, Any], exc: Exception) -> Any:
    """Litestar's exception handler on these paths: OpenAI's answer with this body."""
    request_id = request.scope["state"].get("request_id")
    return error_response(request, exc, body=lambda error: envelope(error, request_id))


def error_frames(error: GatewayError, request_id: str | None) -> bytes:
    """How a stream ends when it fails after the headers."""
    return named_frame("error", envelope(error, request_id))
