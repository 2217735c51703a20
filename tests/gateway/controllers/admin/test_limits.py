"""/admin/v1/limits: exact money, in force at once, the tenant's own left to the operator."""

from __future__ import annotations

from tests.gateway.controllers.admin.conftest import Office

LIMITS = "/admin/v1/limits"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def test_budget_comes_back_to_the_nano_dollar(office: Office) -> None:
    body = {"scope": "tenant", "scope_id": "globex", "quota": "budget_month", "hard": "2500000.370000001", "soft": "1"}
    made = await office.ok("PUT", LIMITS, body=body)
    assert (made["hard"], made["soft"], made["unit"]) == ("2500000.370000001", "1", "usd")
    [listed] = await office.ok("GET", LIMITS, office.acme.keys["admin"])
    assert listed == made


async def test_limit_refuses_at_once_and_no_longer_once_lifted(office: Office) -> None:
    key, admin = office.acme.keys["inference"], office.acme.keys["admin"]
    rule = {"scope": "key", "scope_id": office.acme.key_ids["inference"], "quota": "rpm"}
    await office.ok("PUT", LIMITS, admin, {**rule, "hard": 1})
    await office.ok("POST", "/v1/chat/completions", key, CHAT)
    await office.refused(429, "POST", "/v1/chat/completions", key, CHAT)
    await office.ok("DELETE", LIMITS, admin, params=rule)
    await office.ok("POST", "/v1/chat/completions", key, CHAT)


async def test_tenants_own_limits_are_the_operators(office: Office) -> None:
    body = {"scope": "tenant", "scope_id": office.acme.id, "quota": "rpm", "hard": 10**9}
    await office.refused(403, "PUT", LIMITS, office.acme.keys["admin"], body)
    await office.ok("PUT", LIMITS, body=body)
    assert await office.ok("GET", LIMITS, office.acme.keys["member"]) == []  # nor does a member see it


async def test_bad_value_is_400_and_names_its_field(office: Office) -> None:
    changes: list[tuple[dict[str, object], str]] = [
        ({"quota": "rps"}, "quota"),
        ({"hard": -1}, "hard"),
        ({"hard": "1.5"}, "hard"),
        ({"hard": 1.5}, "hard"),
        ({"quota": "budget_day", "hard": "0.0000000001"}, "hard"),
        ({"quota": "concurrency", "soft": 3}, "soft"),
        ({"scope": "planet"}, "scope"),
        ({"hard": None}, "hard"),
    ]
    for change, param in changes:
        body = {"scope": "project", "scope_id": office.acme.project, "quota": "rpm", "hard": 1, **change}
        assert (await office.refused(400, "PUT", LIMITS, office.acme.keys["admin"], body))["param"] == param


async def test_status_tells_what_is_left_and_when_it_resets(office: Office) -> None:
    key = {"scope": "key", "scope_id": office.acme.key_ids["inference"]}
    await office.ok("PUT", LIMITS, body={**key, "quota": "rpm", "hard": 5})
    await office.ok("PUT", LIMITS, body={**key, "quota": "budget_day", "hard": "1"})
    await office.ok("POST", "/v1/chat/completions", office.acme.keys["inference"], CHAT)
    await office.gateway.parts.background.drain(60)
    status = {each["quota"]: each for each in await office.ok("GET", f"{LIMITS}/status", office.acme.keys["admin"])}
    assert (status["rpm"]["hard"], status["rpm"]["left"]) == (5, 4)
    spent = (await office.gateway.ledger())[-1].amount_nano_usd
    assert spent > 0
    assert status["budget_day"]["used"] == f"0.{spent:09d}".rstrip("0")
    assert status["budget_day"]["held"] == "0"
    assert status["budget_day"]["resets_at"].endswith("T00:00:00Z")
