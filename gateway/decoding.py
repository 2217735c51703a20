"""A JSON body becomes a struct here, once; what is wrong with it becomes OpenAI's error for it.

The fast path is one `msgspec.json.decode` straight into the struct. Only when that fails is the body decoded again to
plain objects, to find the offending value: msgspec's message says where and what was expected, the tables below turn
that into OpenAI's words, `param` and `code`. Two leniences: null means absent (every optional field is nullable), and
an integral float is an integer (`"n": 1.0`; some clients only have one number type). Duplicate keys: the last wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any, ClassVar, TypeVar, cast

import msgspec
from litestar.dto import AbstractDTO, DTOConfig, DTOFieldDefinition
from litestar.openapi.spec import Reference, Schema
from litestar.typing import FieldDefinition

from gateway.errors import InvalidRequest, MalformedBody, UnsupportedEncoding, UnsupportedMedia, clip

T = TypeVar("T")

MAX_DEPTH = 200  # deeper JSON is refused; llguidance stops at about 120, no client comes near
MAX_FLOAT_REPAIRS = 64  # integral floats mended in one body; a list of a million 1.0 is refused instead
MAX_WARNED_FIELDS = 10

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_PATH = re.compile(r" - at (?:`key` in )?`(\$[^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_BOUND = re.compile(r"^Expected `(\w+)`(?: of length)? (>=|<=|>|<) (-?[\d.e+]+)$")
_TYPE = re.compile(r"^Expected `([^`]+)`, got `([^`]+)`$")
_MISSING = re.compile(r"^Object missing required field `([^`]+)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `([^`]+)`$")
_ENUM = re.compile(r"^Invalid (?:enum )?value (.*)$", re.DOTALL)

_TYPE_WORDS = {
    "float": "a decimal",
    "int": "an integer",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def is_json_type(content_type: str | None) -> bool:
    """application/json or application/*+json, any case, any parameters."""
    if not content_type:
        return False
    essence = content_type.split(";", 1)[0].strip().lower()
    return essence == "application/json" or (essence.startswith("application/") and essence.endswith("+json"))


def check_encoding(content_encoding: str | None) -> None:
    """Raises: UnsupportedEncoding for every Content-Encoding but `identity`."""
    if content_encoding and content_encoding.strip().lower() != "identity":
        raise UnsupportedEncoding(content_encoding)


def decode(raw: bytes, type_: type[T], *, supported: Callable[[str], str | None] | None = None) -> T:
    """`raw` as a `type_`.

    Args: supported maps a parameter path to the text of its supported values, for the message of a bad enum.
    Raises: MalformedBody when it is no JSON object; InvalidRequest with OpenAI's message, param and code.
    """
    try:
        return msgspec.json.decode(raw, type=type_)
    except RecursionError as exc:
        raise MalformedBody("nested too deeply") from exc
    except msgspec.ValidationError as exc:
        failure = exc
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise MalformedBody from exc
    if "out of range" in str(failure):  # 1e400: no plain decoding of it either
        raise explain(failure, {}, supported) from failure
    return _mend(_plain(raw), type_, failure, supported)


def _plain(raw: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(raw)
    except RecursionError as exc:
        raise MalformedBody("nested too deeply") from exc
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise MalformedBody from exc
    if not isinstance(document, dict):
        raise MalformedBody("the body must be a JSON object")
    return document


def _mend(
    document: dict[str, Any],
    type_: type[T],
    failure: msgspec.ValidationError,
    supported: Callable[[str], str | None] | None,
) -> T:
    """Turns integral floats into integers where an integer was expected, then tries again."""
    for _ in range(MAX_FLOAT_REPAIRS):
        message, path = _split(str(failure))
        expected = _TYPE.match(message)
        wants_int = expected is not None and "int" in expected[1].split(" | ") and expected[2] == "float"
        if not wants_int or not _to_int(document, path):
            break
        try:
            return msgspec.convert(document, type_)
        except msgspec.ValidationError as exc:
            failure = exc
    raise explain(failure, document, supported) from failure


def _split(message: str) -> tuple[str, list[str | int | None]]:
    found = _PATH.search(message)
    if not found:
        return message, []
    return message[: found.start()], _steps(found[1])


def _steps(path: str) -> list[str | int | None]:
    """`$.messages[0].role` -> ["messages", 0, "role"]; None stands for an unnamed key (`[...]`)."""
    steps: list[str | int | None] = []
    for name, number in _STEP.findall(path[1:]):
        steps.append(name if name else int(number) if number else None)
    return steps


def _to_int(document: Any, steps: list[str | int | None]) -> bool:
    if not steps or None in steps:
        return False
    parent = _locate(document, steps[:-1])
    try:
        value = parent[steps[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    if not isinstance(value, float) or not value.is_integer():
        return False
    parent[steps[-1]] = int(value)
    return True


def _locate(document: Any, steps: list[str | int | None]) -> Any:
    for step in steps:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _param(steps: list[str | int | None]) -> str:
    """["messages", 0, "role"] -> `messages[0].role`."""
    out = ""
    for step in steps:
        if isinstance(step, int):
            out += f"[{step}]"
        elif step is not None:
            out += f".{step}" if out else step
    return clip(out)


def explain(
    failure: msgspec.ValidationError, document: Any, supported: Callable[[str], str | None] | None = None
) -> InvalidRequest:
    """OpenAI's error for a msgspec ValidationError over `document` (the body as plain objects)."""
    message, steps = _split(str(failure))
    param = _param(steps)
    if missing := _MISSING.match(message):
        name = f"{param}.{missing[1]}" if param else missing[1]
        return _missing(name)
    if unknown := _UNKNOWN.match(message):
        return _unknown(f"{param}.{unknown[1]}" if param else unknown[1])
    if not param:
        return MalformedBody("the body must be a JSON object")
    value = _locate(document, steps)
    if bound := _BOUND.match(message):
        return _out_of_bounds(param, bound[1], bound[2], bound[3], value)
    if _ENUM.match(message):
        return bad_value(param, value, supported(_generic(steps)) if supported else None)
    if wrong := _TYPE.match(message):
        return _wrong_type(param, wrong[1], wrong[2])
    if "out of range" in message:
        return InvalidRequest(f"Invalid '{param}': number out of range.", param=param, code="invalid_type")
    return InvalidRequest(f"Invalid '{param}'.", param=param, code="invalid_value")


def _generic(steps: list[str | int | None]) -> str:
    return ".".join("[]" if isinstance(step, int) else str(step) for step in steps)


def _missing(name: str) -> InvalidRequest:
    if name == "model":
        return InvalidRequest("you must provide a model parameter")
    return InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")


def _unknown(name: str) -> InvalidRequest:
    shown = clip(name)
    return InvalidRequest(f"Unknown parameter: '{shown}'.", param=shown, code="unknown_parameter")


def bad_value(param: str, value: Any, supported: str | None = None) -> InvalidRequest:
    """400 invalid_value; `supported` is the text of the allowed values."""
    shown = clip(value) if isinstance(value, str) else clip(msgspec.json.encode(value).decode())
    hint = f" Supported values are: {supported}." if supported else ""
    return InvalidRequest(f"Invalid value: '{shown}'.{hint}", param=param, code="invalid_value")


def _wrong_type(param: str, expected: str, got: str) -> InvalidRequest:
    words = [_TYPE_WORDS.get(kind, kind) for kind in expected.split(" | ") if kind != "null"]
    wanted = words[0] if len(words) == 1 else "one of " + ", ".join(words[:-1]) + f" or {words[-1]}"
    return InvalidRequest(
        f"Invalid type for '{param}': expected {wanted}, but got {_TYPE_WORDS.get(got, got)} instead.",
        param=param,
        code="invalid_type",
    )


def _out_of_bounds(param: str, kind: str, op: str, limit: str, value: Any) -> InvalidRequest:
    if kind in ("array", "str", "object"):
        return _bad_length(param, kind, op, int(limit), value)
    # Whole bounds without ".0"; int64's stay exact by not going through a float.
    bound = limit.removesuffix(".0")
    word = "integer" if kind == "int" else "decimal"
    above = op.startswith("<")
    side, limit_word = ("above", "maximum") if above else ("below", "minimum")
    got = clip(msgspec.json.encode(value).decode()) if isinstance(value, int | float) else "another value"
    code_side = "max" if above else "min"
    return InvalidRequest(
        f"Invalid '{param}': {word} {side} {limit_word} value. Expected a value {op} {bound}, but got {got} instead.",
        param=param,
        code=f"{word}_{side}_{code_side}_value",
    )


def _bad_length(param: str, kind: str, op: str, limit: int, value: Any) -> InvalidRequest:
    noun = {"str": "string", "array": "array", "object": "object"}[kind]
    size = len(value) if isinstance(value, str | list | dict) else None
    if op == ">=" and size == 0:
        return InvalidRequest(
            f"Invalid '{param}': empty {noun}. Expected {'a string' if kind == 'str' else 'an ' + noun} with minimum "
            f"length {limit}, but got an empty {noun} instead.",
            param=param,
            code=f"empty_{noun}",
        )
    long_word, extreme = ("long", "maximum") if op.startswith("<") else ("short", "minimum")
    got = f"length {size}" if size is not None else "another length"
    if kind == "object":
        code = "object_above_max_properties" if long_word == "long" else "object_below_min_properties"
    else:
        code = f"{noun}_above_max_length" if long_word == "long" else f"{noun}_below_min_length"
    article = "a" if kind == "str" else "an"
    return InvalidRequest(
        f"Invalid '{param}': {noun} too {long_word}. Expected {article} {noun} with {extreme} length {limit}, but got "
        f"{article} {noun} with {got} instead.",
        param=param,
        code=code,
    )


def check_depth(raw: bytes) -> None:
    """Raises: MalformedBody when brackets nest deeper than MAX_DEPTH outside strings.

    Cheap bodies first: fewer opening brackets than MAX_DEPTH cannot nest deeper than it. Texts go in one pass of C, as
    this runs on the event loop: 400 KB of prose with brackets took 27 ms when each character was a step.
    """
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    brackets = _TEXT.sub(b"", raw).translate(None, _NO_BRACKETS)
    if brackets.count(b"[") + brackets.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise MalformedBody(f"nested deeper than {MAX_DEPTH} levels")


def unknown_fields(raw: bytes, type_: type[msgspec.Struct]) -> list[str]:
    """Top-level keys of the body that `type_` has no field for, in order, at most MAX_WARNED_FIELDS of them."""
    known = set(type_.__struct_encode_fields__)
    keys = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return [clip(key) for key in keys if key not in known][:MAX_WARNED_FIELDS]


class BodyDTO(AbstractDTO[T]):
    """Litestar's hook for a body: `@post(..., dto=BodyDTO[ChatRequest])` with `data: JSONBody[ChatRequest]`.

    Checks the encoding, the content type (a browser's text/plain would come without a preflight), the depth, and
    decodes. The
    schema in the OpenAPI document is the struct's own. Unknown top-level fields are left in the connection's state
    as `ignored_fields`; with `strict_fields` they are 400.
    """

    config: ClassVar[DTOConfig] = DTOConfig()

    def decode_bytes(self, value: bytes) -> Any:
        connection = self.asgi_connection
        check_encoding(connection.headers.get("content-encoding"))
        content_type = connection.headers.get("content-type")
        if not is_json_type(content_type):
            raise UnsupportedMedia(content_type or "")
        check_depth(value)
        supported = getattr(self.model_type, "supported_values", None)
        data = decode(value, self.model_type, supported=supported)
        ignored = unknown_fields(value, cast(type[msgspec.Struct], self.model_type))
        if ignored:
            if connection.app.state.strict_fields:
                raise getattr(self.model_type, "unknown_field_error", _unrecognized)(ignored[0])
            connection.scope["state"]["ignored_fields"] = ignored
        return data

    @classmethod
    def create_for_field_definition(cls, *args: Any, **kwargs: Any) -> None:
        """No transfer model is generated: the struct itself is the schema and the decoder."""

    @classmethod
    def generate_field_definitions(cls, _model_type: type[Any]) -> Generator[DTOFieldDefinition, None, None]:
        yield from ()

    @classmethod
    def detect_nested_field(cls, _field_definition: FieldDefinition) -> bool:
        return False

    @classmethod
    def create_openapi_schema(
        cls,
        field_definition: FieldDefinition,
        handler_id: str,  # noqa: ARG003
        schema_creator: Any,
    ) -> Reference | Schema:
        schema: Reference | Schema = schema_creator.for_field_definition(field_definition)
        return schema


def _unrecognized(field: str) -> InvalidRequest:
    return InvalidRequest(f"Unrecognized request argument supplied: {field}")
