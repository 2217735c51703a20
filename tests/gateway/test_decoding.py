"""Bad bodies become OpenAI's errors: message, param and code by the table."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.decoding import MAX_DEPTH, check_depth, decode, is_json_type, unknown_fields
from gateway.errors import InvalidRequest, MalformedBody
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest

MESSAGES = '"messages":[{"role":"user","content":"hi"}]'


def chat(fields: str) -> bytes:
    return f'{{"model":"m",{MESSAGES}{"," if fields else ""}{fields}}}'.encode()


def refusal(raw: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decode(raw, ChatRequest, supported=ChatRequest.supported_values)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param", "code", "message"),
    [
        (
            '"temperature":"hot"',
            "temperature",
            "invalid_type",
            "Invalid type for 'temperature': expected a decimal, but got a string instead.",
        ),
        (
            '"temperature":200',
            "temperature",
            "decimal_above_max_value",
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 200 instead.",
        ),
        (
            '"temperature":-0.5',
            "temperature",
            "decimal_below_min_value",
            "Invalid 'temperature': decimal below minimum value. Expected a value >= 0, but got -0.5 instead.",
        ),
        (
            '"n":0',
            "n",
            "integer_below_min_value",
            "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        ),
        (
            '"n":129',
            "n",
            "integer_above_max_value",
            "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 129 instead.",
        ),
        (
            '"n":1.5',
            "n",
            "invalid_type",
            "Invalid type for 'n': expected an integer, but got a decimal instead.",
        ),
        ('"n":true', "n", "invalid_type", "Invalid type for 'n': expected an integer, but got a boolean instead."),
        ('"n":"1"', "n", "invalid_type", "Invalid type for 'n': expected an integer, but got a string instead."),
        (
            '"stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]',
            "stop",
            "array_above_max_length",
            "Invalid 'stop': array too long. Expected an array with maximum length 16, but got an array with length 17 "
            "instead.",
        ),
        (
            '"tool_choice":"maybe"',
            "tool_choice",
            "invalid_value",
            "Invalid value: 'maybe'. Supported values are: 'none', 'auto', and 'required'.",
        ),
        (
            '"seed":18446744073709551616',
            "seed",
            "integer_above_max_value",
            "Invalid 'seed': integer above maximum value. Expected a value <= 9223372036854775807, but got "
            "18446744073709551616 instead.",
        ),
        (
            '"user":"' + "x" * 300 + '"',
            "user",
            "string_above_max_length",
            "Invalid 'user': string too long. Expected a string with maximum length 256, but got a string with length "
            "300 instead.",
        ),
        (
            '"stop":""',
            "stop",
            "empty_string",
            "Invalid 'stop': empty string. Expected a string with minimum length 1, but got an empty string instead.",
        ),
    ],
)
def test_a_bad_field_gets_openais_message_param_and_code(fields: str, param: str, code: str, message: str) -> None:
    error = refusal(chat(fields))

    assert (error.message, error.param, error.code) == (message, param, code)
    assert error.status_code == 400


def test_a_missing_field_is_named() -> None:
    error = refusal(b'{"model":"m"}')

    assert error.message == "Missing required parameter: 'messages'."
    assert (error.param, error.code) == ("messages", "missing_required_parameter")


def test_a_missing_model_has_the_words_of_its_own() -> None:
    error = refusal(b'{"messages":[{"role":"user","content":"hi"}]}')

    assert (error.message, error.param, error.code) == ("you must provide a model parameter", None, None)


def test_an_empty_list_of_messages_is_empty_array() -> None:
    error = refusal(b'{"model":"m","messages":[]}')

    assert error.message == (
        "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
    )
    assert (error.param, error.code) == ("messages", "empty_array")


def test_a_bad_role_names_its_message_and_the_supported_ones() -> None:
    error = refusal(b'{"model":"m","messages":[{"role":"user","content":"a"},{"role":"robot","content":"b"}]}')

    assert error.param == "messages[1].role"
    assert error.code == "invalid_value"
    assert error.message.startswith("Invalid value: 'robot'. Supported values are: 'system', 'assistant', 'user'")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'"x"',
        b"[]",
        b"42",
        b"null",
        b'{"model":"m","temperature":NaN}',
        b'{"model":"m","temperature":Infinity}',
        b"\xef\xbb\xbf{}",
        '{"model":"ä"}'.encode("latin-1"),
        b'{"model":"\\ud800"}',
        b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"model":"m","messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
)
def test_what_is_no_json_object_is_refused_shortly(raw: bytes) -> None:
    error = refusal(raw)

    assert error.status_code == 400
    assert len(msgspec.json.encode(error.envelope())) < 4096


def test_a_number_beyond_float_is_400_not_infinity() -> None:
    error = refusal(chat('"temperature":1e400'))

    assert error.param == "temperature"


def test_a_thousand_bad_messages_are_answered_briefly() -> None:
    error = refusal(b'{"model":"m","messages":[' + b"[]," * 999 + b"[]]}")

    assert error.param == "messages[0]"
    assert len(msgspec.json.encode(error.envelope())) < 4096


def test_null_is_absent() -> None:
    names = [name for name in ChatRequest.__struct_encode_fields__ if name not in ("model", "messages")]
    raw = chat(",".join(f'"{name}":null' for name in names))

    assert decode(raw, ChatRequest) == decode(chat(""), ChatRequest)


def test_an_integral_float_is_an_integer() -> None:
    request = decode(chat('"n":2.0,"max_tokens":16.0,"seed":7.0'), ChatRequest)

    assert (request.n, request.max_tokens, request.seed) == (2, 16, 7)
    assert isinstance(request.n, int)


def test_an_integral_float_still_meets_its_bounds() -> None:
    error = refusal(chat('"n":500.0'))

    assert (error.param, error.code) == ("n", "integer_above_max_value")


def test_token_ids_as_integral_floats_are_mended_up_to_a_bound() -> None:
    assert decode(b'{"model":"m","prompt":[1.0,2.0]}', CompletionRequest).prompt == [1, 2]
    with pytest.raises(InvalidRequest):
        decode(b'{"model":"m","prompt":[' + b"1.0," * 500 + b"1.0]}", CompletionRequest)


@pytest.mark.parametrize("value", ["-9223372036854775808", "-1", "0", "9223372036854775807"])
def test_every_int64_is_a_seed(value: str) -> None:
    assert decode(chat(f'"seed":{value}'), ChatRequest).seed == int(value)


@pytest.mark.parametrize(
    ("content_type", "accepted"),
    [
        ("application/json", True),
        ("Application/JSON; charset=UTF-8", True),
        ("application/vnd.x+json", True),
        (None, False),
        ("", False),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("text/json+json", False),
    ],
)
def test_only_json_types_are_json(content_type: str | None, accepted: bool) -> None:
    assert is_json_type(content_type) is accepted


def test_depth_is_counted_outside_strings() -> None:
    check_depth(b'{"a":"' + b"[" * 5000 + b'"}')
    check_depth(b'{"a":"\\"' + b"[" * 5000 + b'"}')
    check_depth(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    check_depth(b"[[]," * 1 + b"[]," * 5000 + b"[]]")
    with pytest.raises(MalformedBody):
        check_depth(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


@settings(max_examples=300, deadline=None)
@given(st.integers(MAX_DEPTH - 3, MAX_DEPTH + 3), st.text('"[]{}\\ a\n', max_size=60), st.booleans())
def test_depth_is_what_the_nesting_is_whatever_the_texts(depth: int, text: str, mapping: bool) -> None:
    value: object = [text]
    for level in range(depth - 1):
        value = {text: value} if mapping and level % 2 else [text, value]
    raw = json.dumps(value, ensure_ascii=False).encode()
    if depth <= MAX_DEPTH:
        check_depth(raw)
        return
    with pytest.raises(MalformedBody, match="nested"):
        check_depth(raw)


def test_unknown_fields_are_found_at_the_top_only_and_bounded() -> None:
    raw = chat(",".join(f'"foo{number}":{{"model":1}}' for number in range(50)))

    found = unknown_fields(raw, ChatRequest)

    assert found == [f"foo{number}" for number in range(10)]
