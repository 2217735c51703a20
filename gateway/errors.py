"""Everything the HTTP surface refuses with, and the one place where exceptions become OpenAI's error envelope.

GatewayError                  500 server_error
├── InvalidRequest            400 invalid_request_error       `param` and `code` as OpenAI's
│   ├── MalformedBody         400                             not JSON, not UTF-8, not an object, nested too deep
│   ├── ContextTooLong        400 context_length_exceeded
│   ├── UnsupportedMedia      415 unsupported_content_type
│   └── UnsupportedEncoding   415 unsupported_content_encoding
├── Unauthenticated           401 invalid_api_key
├── PermissionDenied          403 insufficient_permissions
├── NotFound                  404
│   └── ModelNotFound         404 model_not_found
├── MethodNotAllowed          405 method_not_supported
├── RequestTimeout            408 request_timeout             our own time limit by route; not to be retried
├── Conflict                  409
├── BodyTooLarge              413
├── HeadTooLarge              431
├── RateLimited               429 rate_limit_exceeded         Retry-After, retry-after-ms; the SDK retries
├── QuotaExceeded             429 insufficient_quota          x-should-retry: false; Retry-After to the reset
├── ClientClosedRequest       499                             nobody is left to read it; status for log and metrics
├── ServerError               500 server_error                no internals in the text
└── Unavailable               503 service_unavailable         Retry-After
    ├── Overloaded            503 server_is_overloaded
    └── UpstreamUnavailable   503 upstream_unavailable

`error_response` is registered for `GatewayError`, Litestar's `HTTPException` and `Exception`, so that no other shape
of error ever leaves the server.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, InternalServerException

log = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 2000  # an error never echoes more than this of what the caller sent
MAX_ECHO_CHARS = 200
MAX_HEAD_BYTES = 64 * 1024  # URL and headers of a request; SDKs send about 1 kB, proxies pass 8 to 64 kB
LEFT_IN_BODY = "left_in_body"  # set in a request's state by gateway/middleware.py


class GatewayError(Exception):
    """Base of every refusal. `message` goes to the caller: it must hold no secret, path or repr of ours."""

    status_code = 500
    type = "server_error"
    code: str | None = None
    should_retry: bool | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str | None = None,
        retry_after_s: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = headers or {}
        if code is not None:
            self.code = code
        if type is not None:
            self.type = type

    def envelope(self) -> dict[str, Any]:
        """`{"error": {message, type, param, code}}`; all four keys are always there, as the SDKs' types say."""
        message = self.message
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[:MAX_MESSAGE_CHARS] + "…"
        return {"error": {"message": printable(message), "type": self.type, "param": self.param, "code": self.code}}

    def response_headers(self) -> dict[str, str]:
        """The SDKs read `retry-after-ms` first, then whole seconds; `x-should-retry` beats their own rules."""
        headers = dict(self.headers)
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
            headers["retry-after-ms"] = str(max(1, math.ceil(self.retry_after_s * 1000)))
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        return headers


class InvalidRequest(GatewayError):
    """The request as sent can never be served."""

    status_code = 400
    type = "invalid_request_error"


class MalformedBody(InvalidRequest):
    """The body is not a JSON object."""

    def __init__(self, detail: str = "") -> None:
        hint = f" ({detail})" if detail else ""
        super().__init__(
            "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP "
            "library correctly. The API expects a JSON payload, but what was sent was not valid JSON.)" + hint
        )


class ContextTooLong(InvalidRequest):
    """The prompt does not fit. Clients classify on the words and on the code: both stay verbatim."""

    code = "context_length_exceeded"

    def __init__(self, *, max_model_len: int, prompt_tokens: int, param: str = "messages", max_tokens: int = 0) -> None:
        where = "messages" if param == "messages" else "prompt"
        if max_tokens:
            resulted = (
                f"you requested {prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {where}, "
                f"{max_tokens} in the completion)"
            )
        else:
            resulted = f"your {where} resulted in {prompt_tokens} tokens"
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, {resulted}. "
            f"Please reduce the length of the {where}.",
            param=param,
        )


class UnsupportedMedia(InvalidRequest):
    status_code = 415
    code = "unsupported_content_type"

    def __init__(self, content_type: str, *, expected: str = "application/json") -> None:
        super().__init__(
            f"Unsupported content type: '{clip(content_type)}'. This API method only accepts '{expected}' requests, "
            f"but you specified the header 'Content-Type: {clip(content_type)}'. Please try again with a supported "
            "content type."
        )


class UnsupportedEncoding(InvalidRequest):
    """The body is compressed. It is not unpacked: a few bytes of it could become gigabytes."""

    status_code = 415
    code = "unsupported_content_encoding"

    def __init__(self, encoding: str) -> None:
        super().__init__(
            f"Unsupported content encoding: '{clip(encoding)}'. Send the request body uncompressed, without the header "
            "'Content-Encoding'."
        )


class Unauthenticated(GatewayError):
    status_code = 401
    type = "invalid_request_error"
    code = "invalid_api_key"

    def response_headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer", **super().response_headers()}


class PermissionDenied(GatewayError):
    status_code = 403
    type = "invalid_request_error"
    code = "insufficient_permissions"


class NotFound(GatewayError):
    status_code = 404
    type = "invalid_request_error"


class ModelNotFound(NotFound):
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model `{clip(model)}` does not exist or you do not have access to it.",
            param="model",
        )


class MethodNotAllowed(GatewayError):
    status_code = 405
    type = "invalid_request_error"
    code = "method_not_supported"


class RequestTimeout(GatewayError):
    """Our own time limit was reached. The same request would reach it again, so the SDK is told not to retry."""

    status_code = 408
    type = "timeout_error"
    code = "request_timeout"
    should_retry = False


class Conflict(GatewayError):
    status_code = 409
    type = "invalid_request_error"
    should_retry = False


class BodyTooLarge(GatewayError):
    status_code = 413
    type = "invalid_request_error"


class HeadTooLarge(GatewayError):
    status_code = 431
    type = "invalid_request_error"

    def __init__(self) -> None:
        super().__init__(f"The request's URL and headers are larger than {MAX_HEAD_BYTES} bytes.")


class RateLimited(GatewayError):
    """A rate is used up: worth retrying after `retry_after_s`. `type` is `requests` or `tokens`, as OpenAI's."""

    status_code = 429
    type = "requests"
    code = "rate_limit_exceeded"


class QuotaExceeded(GatewayError):
    """A budget is used up: retrying at once is useless. Amounts are for admins, never in this text."""

    status_code = 429
    type = "insufficient_quota"
    code = "insufficient_quota"
    should_retry = False


class ClientClosedRequest(GatewayError):
    status_code = 499
    type = "invalid_request_error"


class ServerError(GatewayError):
    """A fault of ours. The text says nothing of the inside; the log does, under the request id."""

    def __init__(self, message: str = "The server had an error while processing your request.", **kwargs: Any) -> None:
        super().__init__(message, **kwargs)


class DeterministicServerError(ServerError):
    """The same request would fail again (a poisoned prompt): three retries would cost three failures."""

    should_retry = False


class Unavailable(GatewayError):
    status_code = 503
    type = "service_unavailable"
    code = "service_unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, **kwargs: Any) -> None:
        super().__init__(message, retry_after_s=retry_after_s, **kwargs)


class Overloaded(Unavailable):
    type = "server_error"
    code = "server_is_overloaded"


class UpstreamUnavailable(Unavailable):
    code = "upstream_unavailable"


def printable(text: str) -> str:
    """`text` without lone surrogates, which no JSON encoder takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def with_head(allowed: str) -> str:
    """The methods of an Allow header, sorted, with the HEAD that is answered wherever GET is."""
    methods = {method.strip() for method in allowed.split(",") if method.strip()}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def clip(value: str, limit: int = MAX_ECHO_CHARS) -> str:
    """At most `limit` characters of something the caller sent."""
    return value if len(value) <= limit else value[:limit] + "…"


def from_exception(exc: BaseException, *, method: str = "", path: str = "") -> GatewayError:
    """Turns any exception into the GatewayError whose envelope the caller gets."""
    if isinstance(exc, GatewayError):
        return exc
    if isinstance(exc, RecursionError):
        return MalformedBody("nested too deeply")
    if isinstance(exc, HTTPException):
        return _from_http_exception(exc, method, path)
    return ServerError()


def _from_http_exception(exc: HTTPException, method: str, path: str) -> GatewayError:
    where = f"{method} {clip(path)}"
    by_status: dict[int, GatewayError] = {
        401: Unauthenticated("You didn't provide an API key."),
        403: PermissionDenied("You have insufficient permissions for this operation."),
        404: NotFound(f"Invalid URL ({where})"),
        405: MethodNotAllowed(f"Not allowed to {method} on {clip(path)}.", headers=_allow(exc)),
        413: BodyTooLarge("The request body is larger than this server accepts."),
        415: UnsupportedMedia(""),
    }
    if found := by_status.get(exc.status_code):
        return found
    if exc.status_code < 500:
        if _offending(exc).get("key") == "data":  # a handler's `data` is missing only when there was no body to decode
            return MalformedBody("the body is empty")
        # Litestar's detail for query and header parameters; bodies are decoded by gateway/decoding.py.
        return InvalidRequest(clip(_detail(exc)))
    return ServerError()


def _allow(exc: HTTPException) -> dict[str, str]:
    return {"allow": with_head((exc.headers or {}).get("allow", ""))}


def _detail(exc: HTTPException) -> str:
    first = _offending(exc)
    return f"Invalid '{first.get('key', '')}': {first.get('message', '')}" if first else "The request is invalid."


def _offending(exc: HTTPException) -> dict[str, Any]:
    """What Litestar says of the first parameter it refuses; empty when it names none."""
    extra = exc.extra
    return extra[0] if isinstance(extra, list) and extra and isinstance(extra[0], dict) else {}


def error_response(
    request: Request[Any, Any, Any], exc: Exception, *, body: Callable[[GatewayError], Any] | None = None
) -> Response[bytes]:
    """Litestar's exception handler for everything. Faults of ours are logged with the traceback, refusals are not.

    Args: body makes the answer's body where it is not OpenAI's envelope.
    """
    if isinstance(exc, InternalServerException) and request.scope["state"].get(LEFT_IN_BODY):
        exc = ClientClosedRequest("The client closed the connection before the request was complete.")  # Litestar: 500
    error = from_exception(exc, method=request.method, path=request.url.path)
    if error.status_code >= 500 and not isinstance(exc, GatewayError):
        log.error("unhandled error on %s %s", request.method, request.url.path, exc_info=exc)
    return Response(
        msgspec.json.encode(error.envelope() if body is None else body(error)),
        media_type="application/json",
        status_code=error.status_code,
        headers=error.response_headers(),
    )
