"""response_format: what compiles holds its promise, what cannot be held to is refused before anything is queued."""

from __future__ import annotations

import contextlib
import json
import random
import time
from typing import Any

import jsonschema
import pytest

from gateway.errors import InvalidRequest
from gateway.schemas.common import JsonSchema, ResponseFormat
from gateway.structured import MAX_SCHEMA_BYTES, GrammarCache, response_grammar
from tests.gateway.grammar_walk import accepts, walk
from tests.gateway.json_schemas import SCHEMAS


def json_schema(schema: Any, name: str = "answer") -> ResponseFormat:
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(name=name, schema=schema))


def grammar_of(schema: Any) -> str:
    grammar = response_grammar(json_schema(schema))
    assert grammar is not None
    return grammar


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_whatever_a_grammar_lets_through_validates(name: str) -> None:
    grammar, rng = grammar_of(SCHEMAS[name]), random.Random(name)
    validator = jsonschema.Draft202012Validator(SCHEMAS[name])

    finished = [text for text in (walk(grammar, rng) for _ in range(8)) if text is not None]

    assert finished
    for text in finished:
        validator.validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "no finite answer"),
        ({"type": "object", "properties": {"k": {"$ref": "#"}}, "required": ["k"]}, "no finite answer"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "no finite answer"),
        ({"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]}, "no finite answer"),
        ({"type": "strin"}, "Invalid type: strin"),
        ({"$ref": "#/nope"}, "Pointer '/nope' does not exist"),
        (True, "must be an object"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "integer", "minimum": 5, "maximum": 1}, "Unsatisfiable"),
        ({"type": "string", "pattern": "(a"}, "regex"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"$ref": "https://example.com/schema.json"}, "schema"),
        ({"description": "x" * MAX_SCHEMA_BYTES}, "the limit is 65536"),
        ({"type": "object", "properties": {f"p{n}": {} for n in range(2001)}}, "2001 properties; the limit is 2000"),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_refused_by_name(schema: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        response_grammar(json_schema(schema, name="order"))

    assert caught.value.param == "response_format"
    assert caught.value.message.startswith("Invalid schema for response_format 'order': ")
    assert reason in caught.value.message
    assert len(caught.value.message) < 500


def test_a_schema_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema}}

    with pytest.raises(InvalidRequest, match="nests deeper than 64 levels"):
        response_grammar(json_schema(schema))


def test_json_schema_without_its_object_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"response_format\.json_schema") as caught:
        response_grammar(ResponseFormat(type="json_schema"))

    assert caught.value.param == "response_format"


def test_recursion_that_can_end_is_taken() -> None:
    grammar = grammar_of(SCHEMAS["linked list"])

    assert accepts(grammar, '{"v":1,"next":{"v":2,"next":null}}')
    assert not accepts(grammar, '{"v":1,"next":{"v":2}}')


def test_keys_come_in_the_order_of_the_properties() -> None:
    grammar = grammar_of(SCHEMAS["two fields"])

    assert accepts(grammar, '{"name": "x", "age": 1}')
    assert not accepts(grammar, '{"age": 1, "name": "x"}')


@pytest.mark.parametrize("keyword", ["$defs", "definitions"])
@pytest.mark.parametrize("first", [True, False])
def test_definitions_are_found_wherever_they_stand(keyword: str, first: bool) -> None:
    definitions = {keyword: {"C": {"enum": ["red", "blau"]}}}
    body = {"type": "object", "properties": {"c": {"$ref": f"#/{keyword}/C"}}, "required": ["c"]}

    grammar = grammar_of({**definitions, **body} if first else {**body, **definitions})

    assert accepts(grammar, '{"c":"blau"}')
    assert not accepts(grammar, '{"c":"green"}')


@pytest.mark.parametrize("format_", [ResponseFormat(type="json_object"), json_schema(SCHEMAS["two fields"])])
def test_white_space_is_bounded_everywhere(format_: ResponseFormat) -> None:
    grammar = response_grammar(format_)
    assert grammar is not None

    pretty = '{\n    "name": "x",\n    "age": 1\n}'
    assert accepts(grammar, pretty)
    assert accepts(grammar, '{"name":"x","age":1}')
    assert not accepts(grammar, pretty.replace("\n    ", "\n\n"))
    assert not accepts(grammar, pretty.replace("    ", " " * 17))
    assert not accepts(grammar, "\n" + pretty)


@pytest.mark.parametrize(
    "format_", [ResponseFormat(type="json_object"), json_schema({}), json_schema({"type": "object"})]
)
def test_generation_ends_with_the_closing_brace(format_: ResponseFormat) -> None:
    grammar = response_grammar(format_)
    assert grammar is not None

    assert accepts(grammar, '{"a": {}}')
    assert not accepts(grammar, '{"a": {}} ')


@pytest.mark.parametrize("schema", [{"type": "integer"}, {"type": "number"}, {"type": "number", "minimum": 0}])
def test_digits_without_end_are_not_a_number(schema: dict[str, Any]) -> None:
    grammar = grammar_of(schema)

    assert accepts(grammar, "12")
    assert not accepts(grammar, "1" * 40)
    assert not accepts(grammar, "0." + "3" * 40)


def test_json_object_never_lets_a_lone_surrogate_through() -> None:
    grammar = response_grammar(ResponseFormat(type="json_object"))
    assert grammar is not None

    assert accepts(grammar, '{"a": "\\u00e9 é"}')
    assert not accepts(grammar, '{"a": "\\ud800"}')


def test_whatever_json_object_lets_through_is_an_object() -> None:
    grammar, rng = response_grammar(ResponseFormat(type="json_object")), random.Random(5)
    assert grammar is not None

    finished = [text for text in (walk(grammar, rng, max_bytes=1500) for _ in range(30)) if text is not None]

    assert len(finished) > 10
    assert all(isinstance(json.loads(text), dict) for text in finished)


def test_an_unknown_format_is_an_annotation() -> None:
    assert accepts(grammar_of({"type": "string", "format": "postcode"}), '"anything"')


def test_text_needs_no_grammar() -> None:
    assert response_grammar(None) is None
    assert response_grammar(ResponseFormat(type="text")) is None


def test_a_pattern_and_a_lark_grammar_are_answers_too() -> None:
    pattern = response_grammar(ResponseFormat(type="regex", pattern="[a-z]+/[0-9]"))
    lark = response_grammar(ResponseFormat(type="grammar", grammar='start: "yes" | "no"'))
    assert pattern is not None
    assert lark is not None

    assert accepts(pattern, "abc/7")
    assert not accepts(pattern, "abc/x")
    assert accepts(lark, "no")
    assert not accepts(lark, "maybe")


@pytest.mark.parametrize(
    "format_", [ResponseFormat(type="regex", pattern="(a"), ResponseFormat(type="grammar", grammar="start: foo")]
)
def test_a_bad_pattern_or_grammar_is_refused(format_: ResponseFormat) -> None:
    with pytest.raises(InvalidRequest) as caught:
        response_grammar(format_)

    assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {f"p{n}": {"type": "string", "pattern": "^[a-z]{1,20}$"} for n in range(1000)},
        },
        {"enum": [f"value {n}" for n in range(4000)]},
        {"type": "string", "pattern": "^" + "(a{1,1000}b{1,1000}){1,1000}" * 3 + "$"},
        {
            "type": "array",
            "maxItems": 10**6,
            "items": {"type": "array", "maxItems": 10**6, "items": {"type": "integer"}},
        },
        {"anyOf": [{"type": "number", "minimum": 0.1 * n, "maximum": n} for n in range(1, 500)]},
    ],
)
def test_the_hardest_schemas_within_the_bounds_take_no_second(schema: dict[str, Any]) -> None:
    began = time.process_time()
    with contextlib.suppress(InvalidRequest):
        response_grammar(json_schema(schema))

    assert time.process_time() - began < 1.0  # 0.04 s measured, of the processor's time


def test_compiled_grammars_are_kept_and_the_oldest_unused_one_goes() -> None:
    cache = GrammarCache(size=2)
    first = cache.compile('start: "a"')
    cache.compile('start: "b"')

    assert cache.compile('start: "a"') is first
    cache.compile('start: "c"')  # "b" goes: it was used longest ago
    assert cache.compile('start: "a"') is first
    assert list(cache._done) == ['start: "c"', 'start: "a"']
