"""The served document tells the truth: its references resolve, its examples work, its methods are those of Allow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.api_examples import EXAMPLES, MODEL
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.fakes import ScriptedEngine, text_model

METHODS = ("get", "post", "put", "patch", "delete")


async def document_of(gateway: Gateway) -> dict[str, Any]:
    document: dict[str, Any] = (await gateway.client.get("/openapi/openapi.json")).json()
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield path, method, item[method]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


async def test_every_reference_resolves_and_every_error_is_an_envelope(gateway: Gateway) -> None:
    document = await document_of(gateway)
    schemas = document["components"]["schemas"]

    assert {ref.removeprefix("#/components/schemas/") for ref in references(document)} <= set(schemas)
    for path, method, operation in operations(document):
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                name = answer["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
                assert name in ("ErrorEnvelope", "AnthropicErrorEnvelope", "HealthReport"), (path, method, status)
        keyed = operation.get("security") != []
        assert ("401" in operation["responses"]) is keyed, path
    assert document["paths"]["/health"]["get"]["security"] == []


async def test_bounds_of_a_body_are_those_of_the_decoder(gateway: Gateway) -> None:
    chat = (await document_of(gateway))["components"]["schemas"]["ChatRequest"]["properties"]

    assert chat["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert chat["stop"]["anyOf"][1]["items"] == {"type": "string", "minLength": 1, "maxLength": 1024}


async def test_every_example_is_answered(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(ScriptedEngine(name=MODEL), text_model=text_model(MODEL))
    await gateway.set_price(MODEL)
    document = await document_of(gateway)
    paths = {operation["operationId"]: path for path, _, operation in operations(document)}

    for name, body in EXAMPLES.items():
        shown = document["paths"][paths[name]]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert shown == body
        answer = await gateway.post(paths[name], body)
        assert answer.status_code == 200, (name, answer.text)


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE"])
async def test_allow_names_every_method_of_a_path(gateway: Gateway, method: str) -> None:
    document = await document_of(gateway)
    for path, item in document["paths"].items():
        documented = {each.upper() for each in METHODS if each in item}
        answer = await gateway.client.request(method, re.sub(r"{[^}]*}", "x", path), headers=gateway.tenant.headers)
        assert answer.status_code == (204 if method == "OPTIONS" else 405), path
        allowed = set(answer.headers["allow"].split(", "))
        assert allowed == documented | {"OPTIONS"} | ({"HEAD"} if "GET" in documented else set()), path


async def test_unknown_page_of_the_document_is_an_envelope(gateway: Gateway) -> None:
    answer = await gateway.client.get("/openapi/swagger")

    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "Invalid URL (GET /openapi/swagger)"
