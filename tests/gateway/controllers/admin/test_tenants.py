"""/admin/v1/tenants and /admin/v1/projects."""

from __future__ import annotations

from tests.gateway.controllers.admin.conftest import Office


async def test_operator_makes_lists_and_changes_a_tenant(office: Office) -> None:
    # given a tenant with a grace that no float could hold
    made = await office.ok(
        "POST",
        "/admin/v1/tenants",
        body={"slug": "initech", "time_zone": "Asia/Kolkata", "grace_usd": "2500000.370000001"},
    )
    assert (made["slug"], made["time_zone"], made["grace_usd"]) == ("initech", "Asia/Kolkata", "2500000.370000001")
    # when it is changed
    changed = await office.ok("PATCH", "/admin/v1/tenants/initech", body={"status": "suspended", "name": "Initech"})
    # then what was left out stayed
    assert (changed["status"], changed["name"], changed["time_zone"]) == ("suspended", "Initech", "Asia/Kolkata")
    assert await office.ok("GET", f"/admin/v1/tenants/{made['id']}") == changed


async def test_tenants_page_by_keyset_without_repeating_one(office: Office) -> None:
    seen: list[str] = []
    query: dict[str, str | int] = {"limit": 2}
    for _ in range(10):
        page = await office.ok("GET", "/admin/v1/tenants", params=query)
        seen += [tenant["slug"] for tenant in page["data"]]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert seen == ["acme", "house", "globex", "rival"]


async def test_admin_sees_one_tenant_and_the_foreign_one_is_not_there(office: Office) -> None:
    page = await office.ok("GET", "/admin/v1/tenants", office.acme.keys["admin"])
    assert [tenant["id"] for tenant in page["data"]] == [office.acme.id]
    foreign = await office.refused(404, "GET", "/admin/v1/tenants/rival", office.acme.keys["admin"])
    absent = await office.refused(404, "GET", "/admin/v1/tenants/rivaz", office.acme.keys["admin"])
    assert foreign["message"].replace("rival", "X") == absent["message"].replace("rivaz", "X")


async def test_unknown_field_of_a_body_is_400_and_named(office: Office) -> None:
    error = await office.refused(400, "POST", "/admin/v1/tenants", body={"slug": "x", "budget": 5})
    assert (error["param"], error["code"]) == ("budget", "unknown_parameter")


async def test_unknown_or_malformed_query_parameter_is_400_and_named(office: Office) -> None:
    assert (await office.refused(400, "GET", "/admin/v1/tenants?limt=3"))["param"] == "limt"
    assert (await office.refused(400, "GET", "/admin/v1/tenants?limit=many"))["param"] == "limit"
    assert (await office.refused(400, "GET", "/admin/v1/tenants?limit=0"))["param"] == "limit"
    assert (await office.refused(400, "GET", "/admin/v1/tenants?limit=1&limit=2"))["param"] == "limit"


async def test_taken_slug_is_409_and_bad_values_name_their_field(office: Office) -> None:
    await office.refused(409, "POST", "/admin/v1/tenants", body={"slug": "rival"})
    for field, value in (("slug", "No Spaces"), ("time_zone", "Mars/Base"), ("grace_usd", "1e3")):
        error = await office.refused(400, "POST", "/admin/v1/tenants", body={"slug": "fine", field: value})
        assert error["param"] == field


async def test_archiving_a_project_ends_its_keys(office: Office) -> None:
    admin = office.acme.keys["admin"]
    made = await office.ok("POST", "/admin/v1/projects", admin, {"name": "Data Lab"})
    assert (made["slug"], made["tenant_id"]) == ("data-lab", office.acme.id)
    key = (await office.ok("POST", "/admin/v1/keys", admin, {"project": made["id"], "scopes": ["usage:read"]}))["key"]
    await office.ok("GET", "/admin/v1/projects", key)
    # when the project is archived
    await office.ok("POST", f"/admin/v1/projects/{made['id']}/archive", admin)
    # then its key opens nothing and only `include_archived` lists it
    await office.refused(403, "GET", "/admin/v1/projects", key)
    listed = await office.ok("GET", "/admin/v1/projects", admin)
    assert made["id"] not in [project["id"] for project in listed["data"]]
    listed = await office.ok("GET", "/admin/v1/projects?include_archived=true", admin)
    assert made["id"] in [project["id"] for project in listed["data"]]


async def test_operator_must_name_the_tenant_of_a_project(office: Office) -> None:
    error = await office.refused(400, "POST", "/admin/v1/projects", body={"name": "Nobody's"})
    assert error["param"] == "tenant"
    made = await office.ok("POST", "/admin/v1/projects", body={"name": "Theirs", "tenant": "rival"})
    assert made["tenant_id"] == office.rival.id
