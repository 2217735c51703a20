"""The edge of the surface: content types, methods, unknown paths, keys, CORS, HEAD, odd bodies."""

from __future__ import annotations

import gzip
from typing import Any

import msgspec
import pytest

from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.raw_asgi import RawExchange

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def envelope(response: Any) -> dict[str, Any]:
    """The error of an answer that is OpenAI's envelope and nothing else."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    error: dict[str, Any] = body["error"]
    return error


async def still_answers(gateway: Gateway) -> None:
    """The next plain request works."""
    assert (await gateway.chat("still there?")).status_code == 200


# -- C43, C45: bodies that are no JSON object


@pytest.mark.parametrize(
    "raw",
    [
        b'"x"',
        b"[]",
        b"42",
        b"null",
        b"",
        b"{",
        b'{"model":"m","messages":[' + b"[]," * 999 + b"[]]}",
        b"\xef\xbb\xbf" + msgspec.json.encode(CHAT),
        '{"model":"m","messages":[{"role":"user","content":"größe"}]}'.encode("latin-1"),
        '{"model":"m","messages":[{"role":"user","content":"你好"}]}'.encode("gbk"),
        b'{"model":"m","temperature":NaN,"messages":[{"role":"user","content":"x"}]}',
        b'{"x":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
)
async def test_a_body_that_is_no_json_object_is_400_and_answered_briefly(gateway: Gateway, raw: bytes) -> None:
    response = await gateway.post("/v1/chat/completions", raw)

    assert response.status_code == 400
    assert envelope(response)["type"] == "invalid_request_error"
    assert len(response.content) < 4096
    assert "/work" not in response.text
    assert "Traceback" not in response.text
    await still_answers(gateway)


async def test_an_empty_body_is_said_to_be_empty(gateway: Gateway) -> None:
    message = envelope(await gateway.post("/v1/chat/completions", b""))["message"]

    assert message.startswith("We could not parse the JSON body of your request.")
    assert message.endswith("(the body is empty)")


# -- C46: content types and encodings


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/files"])
@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP, identity"])
async def test_compressed_bodies_are_415_naming_the_encoding(gateway: Gateway, path: str, encoding: str) -> None:
    response = await gateway.post(path, gzip.compress(msgspec.json.encode(CHAT)), content_encoding=encoding)

    assert response.status_code == 415
    error = envelope(response)
    assert error["code"] == "unsupported_content_encoding"
    assert f"'{encoding}'" in error["message"]


async def test_the_identity_encoding_is_accepted(gateway: Gateway) -> None:
    assert (await gateway.post("/v1/chat/completions", CHAT, content_encoding="identity")).status_code == 200


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_other_content_types_are_415(gateway: Gateway, content_type: str | None) -> None:
    headers = {**gateway.tenant.headers}
    if content_type is not None:
        headers["content-type"] = content_type
    response = await gateway.client.post("/v1/chat/completions", content=msgspec.json.encode(CHAT), headers=headers)

    assert response.status_code == 415
    assert envelope(response)["code"] == "unsupported_content_type"


@pytest.mark.parametrize("content_type", ["Application/JSON; charset=UTF-8", "application/vnd.x+json"])
async def test_json_content_types_of_any_spelling_are_accepted(gateway: Gateway, content_type: str) -> None:
    response = await gateway.post("/v1/chat/completions", CHAT, content_type=content_type)

    assert response.status_code == 200


# -- C48: keys


@pytest.mark.parametrize("template", ["Bearer {}", "bearer {}", "BEARER {}", "Bearer  {}", "Bearer {} "])
async def test_every_spelling_of_bearer_is_accepted(gateway: Gateway, template: str) -> None:
    headers = {"authorization": template.format(gateway.tenant.key)}

    assert (await gateway.client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize("name", ["x-api-key", "api-key"])
async def test_azures_and_anthropics_headers_are_accepted(gateway: Gateway, name: str) -> None:
    assert (await gateway.client.get("/v1/models", headers={name: gateway.tenant.key})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "{}")],
        [("authorization", "Bearer ")],
        [("authorization", "Basic {}")],
        [("authorization", "Bearer {}x")],
        [("authorization", "Bearer sk-wrong")],
        [("authorization", "Bearer {} trailing")],
        [("authorization", "Bearer {}"), ("authorization", "Bearer {}")],
        [("authorization", "Bearer {}"), ("x-api-key", "sk-other")],
        [("x-api-key", "")],
        [("authorization", "Bearer kéy")],
        [("authorization", "Bearer " + "k" * 10_000)],
    ],
)
async def test_a_bad_key_is_401_before_the_body_is_read(gateway: Gateway, headers: list[tuple[str, str]]) -> None:
    sent = [(name, value.format(gateway.tenant.key)) for name, value in headers]
    raw = RawExchange(gateway, "POST", "/v1/chat/completions", CHAT, headers={"content-type": "application/json"})
    raw._scope["headers"] += [(name.encode(), value.encode("latin-1")) for name, value in sent]  # type: ignore[operator]
    async with raw:
        start = await raw.start()
        body = await raw.chunk()

    assert start["status"] == 401
    error = msgspec.json.decode(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert gateway.tenant.key.encode() not in body
    assert not raw.body_was_read


async def test_a_key_without_the_inference_scope_is_403(gateway: Gateway) -> None:
    reader = await gateway.add_tenant("reader", scopes=["usage:read"])

    response = await gateway.chat(tenant=reader)

    assert response.status_code == 403
    assert envelope(response)["code"] == "insufficient_permissions"


# -- unknown paths and methods


async def test_an_unknown_url_is_404_with_openais_words(gateway: Gateway) -> None:
    response = await gateway.post("/v1/nonsense", {})

    assert response.status_code == 404
    assert envelope(response)["message"] == "Invalid URL (POST /v1/nonsense)"


async def test_a_wrong_method_is_405(gateway: Gateway) -> None:
    response = await gateway.post("/v1/models", {})

    assert response.status_code == 405
    assert envelope(response)["code"] == "method_not_supported"


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "//v1/chat/completions"])
async def test_slashes_too_many_do_no_harm(gateway: Gateway, path: str) -> None:
    async with RawExchange(gateway, "POST", path, CHAT) as raw:
        assert (await raw.start())["status"] == 200


async def test_a_body_over_the_limit_is_413(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(max_body_bytes=2048)

    response = await gateway.chat("x" * 4096)

    assert response.status_code == 413
    envelope(response)
    await still_answers(gateway)


# -- C49: OPTIONS, CORS, HEAD


async def test_a_preflight_needs_no_key_and_allows_the_sdks_headers(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(cors_allow_origins=("https://app.example",))
    asked = "authorization,content-type,x-stainless-os,x-stainless-timeout,openai-beta"

    response = await gateway.client.options(
        "/v1/chat/completions",
        headers={
            "origin": "https://app.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": asked,
        },
    )

    assert response.status_code in (200, 204)
    assert response.headers["access-control-allow-origin"] == "https://app.example"
    allowed = {name.strip().lower() for name in response.headers["access-control-allow-headers"].split(",")}
    assert set(asked.split(",")) <= allowed


async def test_an_answer_exposes_the_headers_that_sdks_read(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(cors_allow_origins=("*",))

    response = await gateway.post("/v1/chat/completions", CHAT, origin="https://any.example")

    exposed = response.headers["access-control-expose-headers"].lower()
    assert all(name in exposed for name in ("x-request-id", "retry-after", "x-ratelimit-remaining-requests"))


async def test_cors_is_off_unless_origins_are_named(gateway: Gateway) -> None:
    response = await gateway.post("/v1/chat/completions", CHAT, origin="https://any.example")

    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping", "/metrics"])
async def test_head_answers_as_get_without_a_body(gateway: Gateway, path: str) -> None:
    got, head = await gateway.client.get(path), await gateway.client.head(path)

    assert (got.status_code, head.status_code) == (200, 200)
    assert head.content == b""


# -- C51: models


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [("no-such", 404, "model_not_found"), ("M", 404, "model_not_found"), ("", 400, "empty_string")],
)
async def test_an_unknown_model_is_never_served(gateway: Gateway, model: str, status: int, code: str) -> None:
    response = await gateway.chat(model=model)

    assert response.status_code == status
    assert envelope(response)["code"] == code


@pytest.mark.parametrize("model", [None, 5])
async def test_a_model_that_is_no_string_is_400(gateway: Gateway, model: Any) -> None:
    response = await gateway.chat(model=model)

    assert response.status_code == 400
    envelope(response)


async def test_a_model_outside_the_keys_allow_list_reads_as_unknown(gateway: Gateway) -> None:
    narrow = await gateway.add_tenant("narrow", allowed_models=["other"])

    response = await gateway.chat(tenant=narrow)

    assert response.status_code == 404
    assert envelope(response)["code"] == "model_not_found"
    listed = await gateway.client.get("/v1/models", headers=narrow.headers)
    assert listed.json() == {"object": "list", "data": []}


async def test_models_are_listed_and_got_one_by_one(gateway: Gateway) -> None:
    listed = await gateway.client.get("/v1/models", headers=gateway.tenant.headers)
    one = await gateway.client.get("/v1/models/m", headers=gateway.tenant.headers)
    missing = await gateway.client.get("/v1/models/org%2Fmissing", headers=gateway.tenant.headers)

    assert [card["id"] for card in listed.json()["data"]] == ["m", "all-MiniLM-L6-v2"]
    assert (one.json()["id"], one.json()["object"], one.json()["max_model_len"]) == ("m", "model", 1024)
    assert missing.status_code == 404
    assert "org/missing" in envelope(missing)["message"]


# -- unknown fields


async def test_unknown_fields_are_ignored_with_a_warning(gateway: Gateway) -> None:
    response = await gateway.chat(foo=1, messages_extra="x")

    assert response.status_code == 200
    assert response.headers["x-weir-warning"] == "ignored unknown fields: foo, messages_extra"


async def test_strict_fields_refuse_them_with_openais_words(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(strict_fields=True)

    response = await gateway.chat(foo=1)

    assert response.status_code == 400
    assert envelope(response)["message"] == "Unrecognized request argument supplied: foo"


async def test_a_field_name_cannot_smuggle_a_header(gateway: Gateway) -> None:
    response = await gateway.chat(**{"a\r\nset-cookie: x=1": 1, "ключ": 2})

    assert response.status_code == 200
    assert "set-cookie" not in response.headers


async def test_health_needs_no_key_and_tells_a_hung_engine(gateway: Gateway) -> None:
    assert (await gateway.client.get("/health")).json() == {"status": "ok", "checks": {"engine": "ready"}}

    gateway.engine.status = "hung"

    assert (await gateway.client.get("/health")).status_code == 503
    assert (await gateway.client.get("/ready")).status_code == 503


async def test_metrics_hold_our_names_and_vllms(gateway: Gateway) -> None:
    await gateway.chat()

    text = (await gateway.client.get("/metrics")).text

    assert 'gateway_requests_total{endpoint="chat.completions",model="m",status="ok"} 1.0' in text
    assert "gateway_ttft_seconds_count" in text
    assert 'vllm:num_requests_running{model_name="m"}' in text
    assert 'vllm:time_to_first_token_seconds_count{model_name="m"} 1.0' in text
