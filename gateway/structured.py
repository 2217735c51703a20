"""Structured output: `response_format` and tool schemas become llguidance grammars here, before anything is queued.

llguidance is exact or refuses: a schema it cannot hold the answer to is a 400 that names the keyword. Around it stand
our own bounds, because it takes schemas that no answer can satisfy in finite time (`$ref` in a circle) and because
JSON leaves two things unbounded that small models fall into: white space between tokens and the digits of a number.
White space is at most one blank, or a newline and 16 blanks; numbers without bounds of their own get 18 digits before
the point and 9 behind it. Keys come in the order of `properties`.

Everything is a Lark grammar with `%json` inside, so that an answer's schema and the calls of tools can be joined.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from gateway.errors import InvalidRequest, clip
from gateway.schemas.common import ResponseFormat

MAX_SCHEMA_BYTES = 65_536
MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_PROPERTIES = 2_000
MAX_SCHEMA_REFS = 256
MAX_CACHED_GRAMMARS = 512
MAX_REASON_CHARS = 300

WHITESPACE = r"[ ]|\n[ ]{0,16}"
_COMPILE_OPTIONS = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}
_NO_SPACE = {**_COMPILE_OPTIONS, "whitespace_pattern": None, "whitespace_flexible": False}
_INT_BOUND = 10**18
_NUMBER_STEP = 1e-9
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

# The engine builds its matchers with llguidance's own limits; these are tighter, so what passes here runs there.
_LIMITS = LLParserLimits(max_grammar_size=200_000, initial_lexer_fuel=500_000, verbose_errors=False)

# A JSON object of any shape, with the same bounds on white space and digits and no lone surrogates.
_JSON_RULES = r"""object: "{" WS? (pair (WS? "," WS? pair)* WS?)? "}"
pair: STRING WS? ":" WS? value
array: "[" WS? (value (WS? "," WS? value)* WS?)? "]"
value: object | array | STRING | NUMBER | "true" | "false" | "null"
STRING: /"(\\(["\\\/bfnrt]|u([0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))|[^"\\\x00-\x1F\x7F])*"/
NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/
WS: /[ ]|\n[ ]{0,16}/
"""
ANY_OBJECT = "answer: object\n" + _JSON_RULES
ANY_VALUE = "answer: value\n" + _JSON_RULES

# Any other format is an annotation only, as JSON Schema has it.
_KNOWN_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)


_POSITION = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")


class SchemaRefused(ValueError):
    """A schema or grammar that cannot be held to. The message is for the caller."""


class GrammarCache:
    """Compiles Lark grammars, the most recently used MAX_CACHED_GRAMMARS of them once. Thread-safe."""

    def __init__(self, size: int = MAX_CACHED_GRAMMARS) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._done: OrderedDict[str, str] = OrderedDict()
        self._bytes = LLTokenizer("byte")  # any vocabulary shows whether a grammar can begin

    def compile(self, lark: str) -> str:
        """The grammar as the engine takes it. Raises: SchemaRefused."""
        with self._lock:
            if lark in self._done:
                self._done.move_to_end(lark)
                return self._done[lark]
        grammar: str = LLMatcher.grammar_from_lark(lark)
        self._check(grammar)
        with self._lock:
            self._done[lark] = grammar
            while len(self._done) > self._size:
                self._done.popitem(last=False)
        return grammar

    def _check(self, grammar: str) -> None:
        matcher = LLMatcher(self._bytes, grammar, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            allowed = matcher.compute_bitmask()
            if not matcher.is_error() and any(allowed) and not matcher.is_stopped():
                return
        raise SchemaRefused(_reason(matcher.get_error()))


_cache = GrammarCache()


def compile_grammar(lark: str) -> str:
    """The grammar for `SamplingParams.grammar`, from the process's cache. Raises: SchemaRefused."""
    return _cache.compile(lark)


def answer_rule(response_format: ResponseFormat | None) -> str | None:
    """Lark rules, the first named `answer`, that the answer's text must follow; None for free text.

    Raises: InvalidRequest with param `response_format`.
    """
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return ANY_OBJECT
    if response_format.type == "regex":
        return _pattern_rule(response_format.pattern)
    if response_format.type == "grammar":
        return _grammar_rule(response_format.grammar)
    return _schema_rule(response_format)


def response_grammar(response_format: ResponseFormat | None) -> str | None:
    """The grammar of a `response_format`; None for free text. Raises: InvalidRequest, param `response_format`."""
    rule = answer_rule(response_format)
    if rule is None:
        return None
    assert response_format is not None
    try:
        return compile_grammar(f"start: answer\n{rule}")
    except SchemaRefused as exc:
        raise _refused(_name_of(response_format), exc) from exc


def schema_rule(name: str, schema: Mapping[str, Any]) -> str:
    """A Lark rule for a JSON schema. Raises: SchemaRefused."""
    return f"{name}: %json {json.dumps(prepared(schema), ensure_ascii=False)}\n"


def prepared(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy within the bounds, with white space and digits bounded. Raises: SchemaRefused."""
    check_bounds(schema)
    out = copy.deepcopy(dict(schema))
    if not can_end(out):
        raise SchemaRefused("no finite answer satisfies it: a '$ref' leads back to itself")
    _tidy(out)
    out["x-guidance"] = _NO_SPACE if _is_empty_object(out) else _COMPILE_OPTIONS
    return out


def _is_empty_object(schema: dict[str, Any]) -> bool:
    """An object that holds nothing: `{}` is its only spelling, so that calls without arguments read as clients know."""
    return (
        schema.get("type") == "object"
        and schema.get("additionalProperties") is False
        and not schema.get("properties")
        and not schema.get("patternProperties")
    )


def check_bounds(schema: Mapping[str, Any]) -> None:
    """Raises: SchemaRefused beyond MAX_SCHEMA_BYTES, _DEPTH, _PROPERTIES or _REFS."""
    size = len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "replace"))
    if size > MAX_SCHEMA_BYTES:
        raise SchemaRefused(f"it is {size} bytes long; the limit is {MAX_SCHEMA_BYTES}")
    properties = refs = 0
    stack: list[tuple[Any, int]] = [(schema, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise SchemaRefused(f"it nests deeper than {MAX_SCHEMA_DEPTH} levels")
        if isinstance(node, dict):
            found = node.get("properties")
            properties += len(found) if isinstance(found, dict) else 0
            refs += isinstance(node.get("$ref"), str)
        children = node.values() if isinstance(node, dict) else node
        stack.extend((child, depth + 1) for child in children if isinstance(child, dict | list))
    if properties > MAX_SCHEMA_PROPERTIES:
        raise SchemaRefused(f"it has {properties} properties; the limit is {MAX_SCHEMA_PROPERTIES}")
    if refs > MAX_SCHEMA_REFS:
        raise SchemaRefused(f"it has {refs} '$ref'; the limit is {MAX_SCHEMA_REFS}")


def can_end(schema: dict[str, Any]) -> bool:
    """Whether some finite value satisfies the schema, as far as references go: the least fixpoint over `$ref`."""
    finite: set[str] = set()
    while True:
        known = len(finite)
        if _ends(schema, schema, finite, set()):
            return True
        if len(finite) == known:
            return False


def _ends(node: Any, root: dict[str, Any], finite: set[str], open_refs: set[str]) -> bool:
    if not isinstance(node, dict):
        return node is not False
    if not _ref_ends(node.get("$ref"), root, finite, open_refs):
        return False
    if "const" in node or "enum" in node:
        return True
    for key in ("anyOf", "oneOf"):
        options = node.get(key)
        if isinstance(options, list) and not any(_ends(option, root, finite, open_refs) for option in options):
            return False
    parts = node.get("allOf")
    if isinstance(parts, list) and not all(_ends(part, root, finite, open_refs) for part in parts):
        return False
    kind = node.get("type")
    if kind in ("object", ["object"]):
        return all(_ends(child, root, finite, open_refs) for child in _required_children(node))
    if kind in ("array", ["array"]):
        return all(_ends(child, root, finite, open_refs) for child in _required_items(node))
    return True  # a scalar, or a choice of types with a scalar in it


def _ref_ends(ref: Any, root: dict[str, Any], finite: set[str], open_refs: set[str]) -> bool:
    if not isinstance(ref, str) or ref in finite:
        return True
    if ref in open_refs:
        return False
    target = _resolve(ref, root)
    if target is None:
        return True  # llguidance names what dangles
    if _ends(target, root, finite, open_refs | {ref}):
        finite.add(ref)
        return True
    return False


def _resolve(ref: str, root: dict[str, Any]) -> Any:
    if not ref.startswith("#"):
        return None
    node: Any = root
    for step in filter(None, unquote(ref[1:]).split("/")):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isascii() and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def _required_children(node: dict[str, Any]) -> list[Any]:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(required, list):
        return []
    known = properties if isinstance(properties, dict) else {}
    return [known.get(name, node.get("additionalProperties", True)) for name in required if isinstance(name, str)]


def _required_items(node: dict[str, Any]) -> list[Any]:
    count = node.get("minItems", 0)
    if not isinstance(count, int) or count <= 0:
        return []
    prefix = node.get("prefixItems")
    first = prefix[:count] if isinstance(prefix, list) else []
    return [*first, node.get("items", True)] if len(first) < count else first


def _tidy(root: dict[str, Any]) -> None:
    """Drops unknown formats and gives unbounded numbers bounds: without them a model at a high temperature writes
    digits to the token limit."""
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack.extend(node)
            continue
        if not isinstance(node, dict):
            continue
        stack.extend(value for key, value in node.items() if key not in ("const", "enum", "default", "examples"))
        if isinstance(node.get("format"), str) and node["format"] not in _KNOWN_FORMATS:
            del node["format"]
        kinds = node.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if "const" in node or "enum" in node or not {"integer", "number"} & {k for k in kinds if isinstance(k, str)}:
            continue
        _bound_number(node, integral="number" not in kinds)


def _bound_number(node: dict[str, Any], *, integral: bool) -> None:
    given = [node[key] for key in _BOUNDS if key in node]
    if not all(isinstance(bound, int | float) and abs(bound) < _INT_BOUND for bound in given):
        return
    if "minimum" not in node and "exclusiveMinimum" not in node:
        node["minimum"] = -_INT_BOUND
    if "maximum" not in node and "exclusiveMaximum" not in node:
        node["maximum"] = _INT_BOUND
    if not integral and "multipleOf" not in node and all(float(bound).is_integer() for bound in given):
        node["multipleOf"] = _NUMBER_STEP


def _schema_rule(response_format: ResponseFormat) -> str:
    spec = response_format.json_schema
    if spec is None:
        raise InvalidRequest(
            "Missing required parameter: 'response_format.json_schema'.",
            param="response_format",
            code="missing_required_parameter",
        )
    if spec.schema is None:
        return ANY_OBJECT
    if not isinstance(spec.schema, dict):
        raise _refused(spec.name, SchemaRefused("the schema must be an object"))
    if not spec.schema:
        return ANY_VALUE
    try:
        return schema_rule("answer", spec.schema)
    except SchemaRefused as exc:
        raise _refused(spec.name, exc) from exc


def _pattern_rule(pattern: str | None) -> str:
    if pattern is None:
        raise InvalidRequest(
            "Missing required parameter: 'response_format.pattern'.",
            param="response_format",
            code="missing_required_parameter",
        )
    return f"answer: ANSWER\nANSWER: /{_slashed(pattern)}/\n"


def _slashed(pattern: str) -> str:
    """`pattern` between slashes: an unescaped slash would end it."""
    out, escaped = [], False
    for char in pattern:
        out.append("\\/" if char == "/" and not escaped else char)
        escaped = char == "\\" and not escaped
    return "".join(out).replace("\n", "\\n")


def _grammar_rule(grammar: str | None) -> str:
    if grammar is None:
        raise InvalidRequest(
            "Missing required parameter: 'response_format.grammar'.",
            param="response_format",
            code="missing_required_parameter",
        )
    head, colon, _ = grammar.lstrip().partition(":")
    if not colon or head.strip() != "start":
        raise InvalidRequest(
            "Invalid 'response_format.grammar': its first rule must be named 'start'.",
            param="response_format",
            code="invalid_value",
        )
    return grammar.lstrip().replace("start", "answer", 1)


def _name_of(response_format: ResponseFormat) -> str:
    return response_format.json_schema.name if response_format.json_schema else response_format.type


def _refused(name: str, exc: SchemaRefused) -> InvalidRequest:
    return InvalidRequest(f"Invalid schema for response_format '{clip(name, 64)}': {exc}.", param="response_format")


def _reason(error: str) -> str:
    """llguidance's first line without its position marks."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    text = _POSITION.sub("", lines[0]) if lines else "it matches nothing"
    return clip(text.rstrip("."), MAX_REASON_CHARS)
