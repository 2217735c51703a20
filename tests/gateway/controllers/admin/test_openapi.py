"""The OpenAPI document tells every admin route with its query, its body and its answer."""

from __future__ import annotations

import re

import pytest

from tests.gateway.controllers.admin.cases import CASES
from tests.gateway.controllers.admin.conftest import Office


async def test_document_has_every_route_its_parameters_and_its_body(office: Office) -> None:
    document = (await office.gateway.client.get("/openapi/openapi.json")).json()
    served = {
        (operation["operationId"], method.upper(), re.sub(r"{[^}]*}", "{}", path)): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    for case in CASES:
        operation = served[case.id, case.method, re.sub(r"{[^}]*}", "{}", case.path)]
        parameters = {p["name"]: p for p in operation.get("parameters", []) if p["in"] == "query"}
        assert set(case.query) <= set(parameters), case.id
        if case.body:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            body = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
            fields = {key for key in case.body if "{" not in key}
            assert fields <= set(body["properties"]), case.id
    report = served["GetReport", "GET", "/admin/v1/reports/{}"]["parameters"]
    by = next(parameter for parameter in report if parameter["name"] == "by")
    assert (by["schema"]["type"], by["schema"]["items"]["type"], by["required"]) == ("array", "string", False)
    start = next(
        parameter
        for parameter in served["usage-completions", "GET", "/v1/organization/usage/completions"]["parameters"]
        if parameter["name"] == "start_time"
    )
    assert (start["schema"]["type"], start["required"]) == ("integer", True)


@pytest.mark.parametrize("page", ["", "/openapi.json", "/swagger", "/redoc", "/elements", "/scalar", "/rapidoc"])
async def test_the_document_is_served_and_no_page_that_loads_others_scripts(office: Office, page: str) -> None:
    answer = await office.gateway.client.get(f"/openapi{page}")

    if page in ("", "/openapi.json"):
        assert answer.status_code == 200
        assert answer.json()["info"]["title"] == "Weir"
    else:
        assert answer.status_code == 404
        assert "://" not in answer.text
