"""GET /v1/usage: what was spent, what is left, when it resets."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.gateway.controllers.admin.conftest import Office, book, office, office_database

__all__ = ["office", "office_database"]


async def test_key_sees_what_it_spent_and_what_is_left_of_every_limit_on_it(office: Office) -> None:
    key = office.acme.keys["member"]
    project = {"scope": "project", "scope_id": office.acme.project}
    await office.ok("PUT", "/admin/v1/limits", body={**project, "quota": "budget_month", "hard": "1"})
    await office.ok("PUT", "/admin/v1/limits", body={**project, "quota": "rpm", "hard": 5})
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    answer = await office.ok("POST", "/v1/chat/completions", key, chat)
    await office.gateway.parts.background.drain(60)
    # when the key asks
    usage = await office.ok("GET", "/v1/usage", key)
    # then the row of its start-up and the chat at $1 and $2 a million are its spending
    tokens = answer["usage"]
    spent = 27_750 + tokens["prompt_tokens"] * 1_000 + tokens["completion_tokens"] * 2_000
    assert {(each["scope"], each["period"]): each["amount_nano_usd"] for each in usage["spent"]} == {
        (scope, period): spent for scope in ("key", "project") for period in ("day", "week", "month")
    }
    limits = {each["quota"]: each for each in usage["limits"]}
    assert (limits["budget_month"]["used"], limits["budget_month"]["unit"]) == (f"0.{spent:09d}".rstrip("0"), "usd")
    assert float(limits["budget_month"]["left"]) < 1
    assert datetime.fromisoformat(limits["budget_month"]["resets_at"]) > datetime.now(UTC)
    assert (limits["rpm"]["hard"], limits["rpm"]["left"]) == (5, 4)


async def test_members_do_not_see_what_the_rest_of_the_tenant_spends_and_admins_do(office: Office) -> None:
    await book(office.gateway, office.rival.keys["admin"], request_id="req_rival")
    member = await office.ok("GET", "/v1/usage", office.acme.keys["member"])
    assert {each["scope"] for each in member["spent"]} == {"key", "project"}
    admin = await office.ok("GET", "/v1/usage", office.acme.keys["admin"])
    tenant = {each["period"]: each["amount_usd"] for each in admin["spent"] if each["scope"] == "tenant"}
    assert tenant == dict.fromkeys(("day", "week", "month"), "0.00002775")


async def test_resets_are_midnights_of_the_tenants_zone(office: Office) -> None:
    await office.ok("PATCH", "/admin/v1/tenants/globex", body={"time_zone": "Asia/Kolkata"})
    usage = await office.ok("GET", "/v1/usage", office.acme.keys["member"])
    assert usage["time_zone"] == "Asia/Kolkata"
    assert {each["resets_at"][11:19] for each in usage["spent"]} == {"18:30:00"}


async def test_key_for_inference_alone_may_not_ask(office: Office) -> None:
    await office.refused(403, "GET", "/v1/usage", office.acme.keys["inference"])
    await office.refused(401, "GET", "/v1/usage", "sk-weir-nonsense")
