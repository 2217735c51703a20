"""The OpenAPI document: Litestar tells the routes and parameters, this module what stands in the bodies.

Litestar's own schemas of msgspec structs lose bounds (a minimum of 0, the items of a list) and its errors are of a
shape that never leaves the server. So the schemas of bodies and answers are msgspec's, which are those the decoder
holds to, and every operation tells the errors it can answer with, in the envelope that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args, get_origin

import msgspec
from litestar import Litestar, Request, Response
from litestar.exceptions import NotFoundException
from litestar.handlers.http_handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.response.base import ASGIResponse
from litestar.router import Router
from litestar.routes import HTTPRoute

from gateway import __version__
from gateway.api_examples import EXAMPLES
from gateway.schemas.errors import ErrorEnvelope
from gateway.schemas.files import PURPOSES

PATH = "/openapi"
_REF = "#/components/schemas/{name}"
_STREAMED = ("CreateChatCompletion", "CreateCompletion", "CreateMessage", "CreateResponse", "GetResponse")

# What every operation may answer with, and what only those with a key or a body may.
_ANYWHERE = {
    400: "The request can never be served as sent.",
    431: "The URL and headers are too large.",
    500: "A fault of the server.",
    503: "Not available now; see retry-after.",
}
_WITH_KEY = {
    401: "No valid API key.",
    403: "The key may not do this.",
    404: "Unknown model or object.",
    408: "The server's time limit was reached.",
    409: "It stands against what is there.",
    429: "A limit or budget is used up; see retry-after and x-should-retry.",
}
_WITH_BODY = {
    413: "The body, or the request, is too large.",
    415: "The body is of another content type, or compressed.",
}
_UPLOAD = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"enum": list(PURPOSES)},
                    "expires_after[seconds]": {"type": "string", "pattern": "^[0-9]{4,7}$"},  # 3600 to 2592000
                },
                "required": ["file", "purpose"],
            },
        }
    },
}


class _Document(JsonRenderPlugin):
    """Serves the document, completed once."""

    def __init__(self) -> None:
        super().__init__()
        self._rendered: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        if self._rendered is None:
            self._rendered = msgspec.json.encode(complete(request.app, openapi_schema))
        return self._rendered


def config() -> OpenAPIConfig:
    """For `Litestar(openapi_config=...)`: the document alone, no page, as Litestar's load scripts from elsewhere."""
    return OpenAPIConfig(
        title="Weir",
        version=__version__,
        summary="A multi-tenant, cost-governed gateway for large language models",
        path=PATH,
        render_plugins=[_Document()],
        openapi_router=Router(
            PATH,
            route_handlers=[],
            include_in_schema=False,
            dto=None,
            return_dto=None,
            before_request=_refuse_unknown,
        ),
        components=Components(
            security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer", description="An API key")}
        ),
        security=[{"bearer": []}],
    )


def _refuse_unknown(request: Request[Any, Any, Any]) -> None:
    """Litestar answers an unknown page here with HTML of its own."""
    if "{" in str(request.scope.get("path_template")):
        raise NotFoundException


def complete(app: Litestar, document: dict[str, Any]) -> dict[str, Any]:
    """`document`, as Litestar made it of `app`, with its bodies, answers and errors told in full."""
    told = [_Told(handler, operation) for handler, operation in _operations(app, document)]
    types = [type_ for each in told for type_ in each.types]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    of_type = {repr(type_): schema for type_, schema in zip(types, schemas, strict=True)}
    for each in told:
        each.tell(lambda type_: of_type[repr(type_)])
    document["components"]["schemas"] = components
    return document


def _operations(app: Litestar, document: dict[str, Any]) -> Iterator[tuple[HTTPRouteHandler, dict[str, Any]]]:
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                for method in handler.http_methods:
                    operation = document["paths"].get(route.path_format or "/", {}).get(method.lower())
                    if operation is not None:
                        yield handler, operation


class _Told:
    """One operation: the types in its bodies, and how they come into the document."""

    def __init__(self, handler: HTTPRouteHandler, operation: dict[str, Any]) -> None:
        self._operation = operation
        self._keyed = bool(handler.resolve_guards())
        body = handler.parsed_fn_signature.parameters.get("data")
        self._body = body.annotation if body is not None else None
        declared = {status: spec.data_container for status, spec in (handler.responses or {}).items()}
        answer = declared.pop(handler.status_code, None) or _returned(handler)
        self._success = str(handler.status_code)
        self._answer = answer
        self._declared = declared
        self._envelope = declared.get(400, ErrorEnvelope)

    @property
    def types(self) -> list[Any]:
        """What schemas are needed of."""
        named = [self._body, self._answer, self._envelope, *self._declared.values()]
        return [type_ for type_ in named if type_ is not None]

    def tell(self, schema: Callable[[Any], dict[str, Any]]) -> None:
        """Completes the operation in place."""
        operation = self._operation
        name = operation["operationId"]
        if self._body is not None:
            operation["requestBody"] = {"required": True, "content": _json(schema(self._body))}
        elif name == "CreateFile":
            operation["requestBody"] = _UPLOAD
        if name in EXAMPLES:
            operation["requestBody"]["content"]["application/json"]["example"] = EXAMPLES[name]
        if not self._keyed:
            operation["security"] = []
        responses = operation["responses"]
        if self._answer is not None:
            responses[self._success]["content"] = _json(schema(self._answer))
        if name in _STREAMED:
            responses[self._success]["content"]["text/event-stream"] = {}
        for status, words in self._errors().items():
            type_ = self._declared.get(status, self._envelope)
            responses[str(status)] = {"description": words, "content": _json(schema(type_))}

    def _errors(self) -> dict[int, str]:
        has_body = "requestBody" in self._operation
        return _ANYWHERE | (_WITH_KEY if self._keyed else {}) | (_WITH_BODY if has_body else {})


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _returned(handler: HTTPRouteHandler) -> Any:
    """The type of the JSON that a handler returns; None where it is no JSON, or nothing."""
    type_ = handler.parsed_fn_signature.return_type.annotation
    if get_origin(type_) is Response:
        type_ = get_args(type_)[0]
    bare = get_origin(type_) or type_
    unsaid = type_ in (None, type(None), bytes, Any) or issubclass(bare, Response | ASGIResponse)
    return None if unsaid else type_
