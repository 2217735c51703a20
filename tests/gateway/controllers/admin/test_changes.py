"""/admin/v1/apply and /admin/v1/webhooks."""

from __future__ import annotations

from tests.gateway.controllers.admin.conftest import Office

DOCUMENT = {
    "tenants": [{"slug": "globex", "limits": {"rpm": 600, "budget_month": "2500000.370000001"}}],
    "prices": [{"model": "x", "input": "0.0375", "output": "0.15"}],
}


async def test_dry_run_shows_the_difference_and_changes_nothing(office: Office) -> None:
    shown = await office.ok("POST", "/admin/v1/apply?dry_run=true", body=DOCUMENT)
    assert shown["applied"] is False
    assert [each["what"] for each in shown["differences"]] == [
        "tenant globex rpm",
        "tenant globex budget_month",
        "price x (default)",
    ]
    assert await office.ok("GET", "/admin/v1/limits?tenant=globex") == []


async def test_document_is_applied_once_and_then_there_is_nothing_to_do(office: Office) -> None:
    await office.ok("POST", "/admin/v1/apply", body=DOCUMENT)
    limits = await office.ok("GET", "/admin/v1/limits?tenant=globex")
    assert {rule["quota"]: rule["hard"] for rule in limits} == {"budget_month": "2500000.370000001", "rpm": 600}
    again = await office.ok("POST", "/admin/v1/apply", body=DOCUMENT)
    assert again["differences"] == []


async def test_one_fault_in_a_document_undoes_all_of_it(office: Office) -> None:
    broken = {"tenants": [{"slug": "brand-new"}, {"slug": "globex", "limits": {"warp": 9}}]}
    await office.refused(400, "POST", "/admin/v1/apply", body=broken)
    await office.refused(404, "GET", "/admin/v1/tenants/brand-new")
    unknown = await office.refused(400, "POST", "/admin/v1/apply", body={"tenants": [{"slug": "x", "colour": "red"}]})
    assert (unknown["param"], unknown["code"]) == ("tenants[0].colour", "unknown_parameter")


async def test_webhook_secret_is_shown_once_and_belongs_to_the_tenant(office: Office) -> None:
    admin = office.acme.keys["admin"]
    made = await office.ok("POST", "/admin/v1/webhooks", admin, {"url": "https://example.com/hook"})
    assert made["secret"].startswith("whsec_")
    assert made["details"]["tenant_id"] == office.acme.id
    listed = await office.call("GET", "/admin/v1/webhooks", admin)
    assert made["secret"] not in listed.text
    assert [each["id"] for each in listed.json()] == [made["details"]["id"]]
    assert await office.ok("GET", "/admin/v1/webhooks", office.rival.keys["admin"]) == []
    await office.ok("DELETE", f"/admin/v1/webhooks/{made['details']['id']}", admin)
    assert await office.ok("GET", "/admin/v1/webhooks", admin) == []


async def test_routes_of_a_document_are_checked_before_anything_is_written(office: Office) -> None:
    upstream = {"base_url": "http://127.0.0.1:9/v1", "models": {"theirs": ""}}
    route = {"targets": [{"upstream": "local", "model": "m"}, {"upstream": "east", "model": "theirs"}]}
    for config, fault in (
        ({"route": {"chat": {"targets": [{"upstream": "east", "model": "theirs"}]}}}, "no upstream 'east'"),
        ({"upstream": {"east": upstream}, "route": {"chat": {**route, "colour": "red"}}}, "colour"),
        ({"upstream": {"local": upstream}}, "own"),
        ({"wormhole": {"x": {}}}, "wormhole"),
    ):
        error = await office.refused(400, "POST", "/admin/v1/apply", body={"config": config})
        assert fault in error["message"]
    assert await office.ok("GET", "/admin/v1/upstreams") == []
    # and in force when they are right
    await office.ok(
        "POST", "/admin/v1/apply", body={"config": {"upstream": {"east": upstream}, "route": {"chat": route}}}
    )
    [listed] = await office.ok("GET", "/admin/v1/routes")
    assert [target["upstream"] for target in listed["route"]["targets"]] == ["local", "east"]


async def test_cached_answers_are_taken_back_for_one_tenant(office: Office) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "What is a weir?"}]}

    async def outcome(key: str) -> str:
        response = await office.call("POST", "/v1/chat/completions", key, chat)
        await office.gateway.parts.background.drain(60)
        return str(response.headers["x-weir-cache"])

    # given both companies with the same answer in their caches
    for company in (office.acme, office.rival):
        assert (await outcome(company.keys["inference"])).startswith("miss")
        assert (await outcome(company.keys["inference"])).startswith("hit")
    admin, cache = office.acme.keys["admin"], "/admin/v1/tenants/globex/cache"
    assert (await office.ok("GET", cache, admin))["entries"] == 1
    counted = await office.ok("POST", f"{cache}/invalidate", admin, {"dry_run": True})
    assert (counted["entries"], counted["dry_run"]) == (1, True)
    assert (await office.ok("POST", f"{cache}/invalidate", admin, {"model": "another"}))["entries"] == 0
    # when one takes its own back
    assert (await office.ok("POST", f"{cache}/invalidate", admin, {"project": office.acme.project}))["entries"] == 1
    # then the other's stays
    assert (await outcome(office.acme.keys["inference"])).startswith("miss")
    assert (await outcome(office.rival.keys["inference"])).startswith("hit")
    assert (await office.audit())[-1].detail == {"project": office.acme.project}
