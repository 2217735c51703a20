"""Forty JSON schemas of growing difficulty, for structured output."""

from __future__ import annotations

from typing import Any

_NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["v", "next"],
    "additionalProperties": False,
}
_COLOUR = {"enum": ["red", "blau"]}


def _object(properties: dict[str, Any], *optional: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
        **more,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string", "maxLength": 40},
    "const": {"const": "only this"},
    "enum of strings": {"enum": ["small", "medium", "large"]},
    "enum of kinds": {"enum": [1, "two", None, True, [3], {"four": 4}]},
    "bounded integer": {"type": "integer", "minimum": -3, "maximum": 17},
    "bounded number": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    "nullable string": {"type": ["string", "null"], "maxLength": 20},
    "string bounds": {"type": "string", "minLength": 3, "maxLength": 8},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "empty object": _object({}),
    "two fields": _object({"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer"}}),
    "optional fields": _object({"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}}, "b", "c"),
    "array": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 5},
    "array bounds": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
        "items": False,
        "minItems": 2,
    },
    "array of objects": {"type": "array", "items": _object({"id": {"type": "integer"}}), "minItems": 1, "maxItems": 3},
    "nested objects": _object({"a": _object({"b": _object({"c": {"type": "boolean"}})})}),
    "map of integers": {"type": "object", "additionalProperties": {"type": "integer"}},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,5}$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "enum behind ref": _object(
        {
            "c": {"$ref": "#/$defs/C"},
            "l": {"type": "array", "items": {"$ref": "#/$defs/C"}, "minItems": 2, "maxItems": 2},
        },
        **{"$defs": {"C": _COLOUR}},
    ),
    "definitions first": {
        "definitions": {"C": _COLOUR},
        **_object({"c": {"$ref": "#/definitions/C"}}),
    },
    "ref to a property": _object({"a": {"type": "boolean"}, "b": {"$ref": "#/properties/a"}}),
    "any of scalars": {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "null"}]},
    "any of objects": {
        "anyOf": [
            _object({"kind": {"const": "circle"}, "radius": {"type": "number", "minimum": 0}}),
            _object({"kind": {"const": "square"}, "side": {"type": "number", "minimum": 0}}),
        ]
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
        "additionalProperties": False,
        "properties": {"a": True, "b": True},
        "type": "object",
    },
    "linked list": {"$ref": "#/$defs/node", "$defs": {"node": _NODE}},
    "tree": {
        "$defs": {
            "t": _object(
                {"v": {"type": "boolean"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}
            )
        },
        "$ref": "#/$defs/t",
    },
    "escaped keys": _object(
        {'a "quoted" key': {"type": "boolean"}, "ключ": {"type": "integer"}, "a/b~c": {"type": "null"}}
    ),
    "twenty fields": _object({f"field_{n}": {"type": ["boolean", "null"]} for n in range(20)}),
    "invoice": _object(
        {
            "number": {"type": "string", "pattern": "^INV-[0-9]{6}$"},
            "issued": {"type": "string", "format": "date"},
            "currency": {"enum": ["EUR", "USD", "JPY"]},
            "lines": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": _object(
                    {
                        "text": {"type": "string", "minLength": 1, "maxLength": 24},
                        "count": {"type": "integer", "minimum": 1, "maximum": 999},
                        "price": {"type": "number", "minimum": 0, "maximum": 100000},
                    }
                ),
            },
            "note": {"type": ["string", "null"], "maxLength": 60},
        }
    ),
    "expression": {
        "$defs": {
            "e": {
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": 99},
                    _object({"op": {"enum": ["+", "*"]}, "l": {"$ref": "#/$defs/e"}, "r": {"$ref": "#/$defs/e"}}),
                ]
            }
        },
        "$ref": "#/$defs/e",
    },
}
assert len(SCHEMAS) == 40
