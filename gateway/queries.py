"""A query string becomes a struct, as a JSON body does: bounds in the struct, unknown names refused by name.

Lists are accepted as every client writes them: `group_by=model`, repeated, `group_by[]=model` (openai-python),
`group_by[0]=model` (qs). An object's fields are `effective_at[gte]=1`; an object of lists
is `filter[model]=a&filter[model]=b`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from litestar import Request
from litestar.di import Provide
from litestar.openapi.spec import Operation, Parameter, Schema
from litestar.openapi.spec.enums import OpenAPIType

from gateway.decoding import explain
from gateway.errors import InvalidRequest, clip

Q = TypeVar("Q", bound=msgspec.Struct)

MAX_FIELDS = 500
_NAME = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")


def decode_query(query_string: bytes, type_: type[Q]) -> Q:
    """`query_string` as a `type_`. Raises: InvalidRequest naming the parameter; it is never ignored."""
    try:
        pairs = parse_qsl(query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as exc:
        raise InvalidRequest(f"The query has more than {MAX_FIELDS} parameters.") from exc
    document = _gather(pairs, _shapes(type_))
    try:
        query = msgspec.convert(document, type_, strict=False)
    except msgspec.ValidationError as exc:
        raise explain(exc, document) from exc
    _refuse_null(query, document)
    return query


def _refuse_null(query: msgspec.Struct, document: dict[str, Any]) -> None:
    """msgspec reads the word `null` as nothing where no text is expected: a filter would be ignored."""
    for field in msgspec.structs.fields(query):
        if field.encode_name in document and getattr(query, field.name) is None:
            value = clip(str(document[field.encode_name]))
            raise InvalidRequest(f"Invalid value: '{value}'.", param=field.encode_name, code="invalid_value")


class _Shape(Enum):
    VALUE = "value"
    LIST = "list"
    OBJECT = "object"  # of single values
    LISTS = "lists"  # an object of lists


def _gather(pairs: list[tuple[str, str]], shapes: dict[str, _Shape]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in pairs:
        match = _NAME.fullmatch(key)
        name, inner = (match[1], match[2]) if match else (key, None)
        shape = shapes.get(name, _Shape.VALUE)
        if shape is _Shape.LIST:
            document.setdefault(name, []).append(value)
        elif shape is _Shape.OBJECT and inner:
            document.setdefault(name, {})[inner] = value
        elif shape is _Shape.LISTS and inner:
            document.setdefault(name, {}).setdefault(inner, []).append(value)
        elif name in document or inner is not None:
            raise InvalidRequest(f"Invalid '{clip(key)}': it takes one value.", param=clip(name), code="invalid_value")
        else:
            document[name] = value
    return document


@lru_cache
def _shapes(type_: type[msgspec.Struct]) -> dict[str, _Shape]:
    info = msgspec.inspect.type_info(type_)
    assert isinstance(info, msgspec.inspect.StructType)
    return {field.encode_name: _shape(field.type) for field in info.fields}


def _shape(type_: msgspec.inspect.Type) -> _Shape:
    for option in type_.types if isinstance(type_, msgspec.inspect.UnionType) else (type_,):
        if isinstance(option, msgspec.inspect.CollectionType):
            return _Shape.LIST
        if isinstance(option, msgspec.inspect.DictType):
            return _Shape.LISTS
        if isinstance(option, msgspec.inspect.StructType):
            return _Shape.OBJECT
    return _Shape.VALUE


def takes_query(type_: type[msgspec.Struct]) -> dict[str, Any]:
    """For a handler's decorator: `@get(..., **takes_query(Filters))` with a parameter `params: Filters`.

    The struct's fields stand in the OpenAPI document as the operation's query parameters.
    """

    def params(request: Request[Any, Any, Any]) -> Any:
        return decode_query(request.scope["query_string"], type_)

    return {
        "dependencies": {"params": Provide(params, sync_to_thread=False)},
        "operation_class": _operation_class(type_),
    }


def _operation_class(type_: type[msgspec.Struct]) -> type[Operation]:
    parameters = _parameters(type_)

    @dataclass  # again, for __post_init__ to be called
    class QueryOperation(Operation):
        """An operation whose query parameters come from a struct."""

        def __post_init__(self) -> None:
            self.parameters = [*(self.parameters or []), *parameters]

    return QueryOperation


def _parameters(type_: type[msgspec.Struct]) -> list[Parameter]:
    [schema] = [part for part in msgspec.json.schema_components([type_])[1].values() if part["title"] == type_.__name__]
    required = set(schema["required"])
    return [
        Parameter(
            name=name,
            param_in="query",
            required=name in required,
            description=part.get("description"),
            schema=_schema(part),
        )
        for name, part in schema["properties"].items()
    ]


def _schema(part: dict[str, Any]) -> Schema:
    """The main alternative of a nullable type; what msgspec says of it in OpenAPI's own names."""
    options = [each for each in part.get("anyOf", [part]) if each.get("type") != "null"]
    main = options[0]
    kind = OpenAPIType(main.get("type", "string" if "enum" in main else "object"))
    names: dict[str, Callable[[Any], Any]] = {"enum": list, "minimum": float, "maximum": float, "format": str}
    known = {name: convert(main[name]) for name, convert in names.items() if name in main}
    items = _schema(main["items"]) if main.get("items") else None
    return Schema(type=kind, items=items, **known)
