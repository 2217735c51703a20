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
