"""/admin/v1/tenants and /admin/v1/projects."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from billing.tables import Tenant
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


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"max_entries": 2**70}, "max_entries"),
        ({"max_bytes": 2**31 + 1}, "max_bytes"),
        ({"max_answer_bytes": 0}, "max_answer_bytes"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 10**9 + 1}, "ttl_s"),
        ({"threshold": 0.49}, "threshold"),
        ({"threshold": "0.9"}, "threshold"),
        ({"enabled": 1}, "enabled"),
        ({"personal": "everybody"}, "personal"),
        ({"max_entires": 5}, "max_entires"),
        ({"hit_price": "gratis"}, "hit_price"),
        ({"hit_price": "101%"}, "hit_price"),
        ({"hit_price": "-1%"}, "hit_price"),
        ({"hit_price": "0.00001%"}, "hit_price"),
        ({"hit_price": "25"}, "hit_price"),
        ({"hit_price": 0.25}, "hit_price"),
    ],
)
async def test_a_cache_policy_out_of_bounds_is_400_and_its_field_is_named(
    office: Office, policy: dict[str, Any], field: str
) -> None:
    error = await office.refused(400, "PATCH", f"/admin/v1/tenants/{office.acme.id}", body={"cache_policy": policy})
    assert field in f"{error['param']} {error['message']}"
    await office.refused(400, "POST", "/admin/v1/tenants", body={"slug": "fresh", "cache_policy": policy})
    assert (await office.ok("GET", f"/admin/v1/tenants/{office.acme.id}"))["cache_policy"] == {}


async def test_settings_beyond_16_kib_are_400(office: Office) -> None:
    fits = {"note": "x" * (16 * 1024 - len('{"note": ""}'))}
    assert (await office.ok("PATCH", f"/admin/v1/tenants/{office.acme.id}", body={"settings": fits}))[
        "settings"
    ] == fits
    too_large = {"note": fits["note"] + "x"}
    error = await office.refused(400, "PATCH", f"/admin/v1/tenants/{office.acme.id}", body={"settings": too_large})
    assert (error["param"], "16384" in error["message"]) == ("settings", True)


async def test_a_tenants_admin_neither_loosens_nor_drops_the_operators_caps(office: Office) -> None:
    admin, path = office.acme.keys["admin"], f"/admin/v1/tenants/{office.acme.id}"
    for field, value in (
        ("max_entries", 5),
        ("max_bytes", 5),
        ("max_answer_bytes", 5),
        ("shadow_share", 1.0),
        ("hit_price", "free"),
    ):
        error = await office.refused(403, "PATCH", path, admin, {"cache_policy": {field: value}})
        assert field in error["message"]
    # given a cap and a price by the operator
    await office.ok("PATCH", path, body={"cache_policy": {"max_entries": 10, "hit_price": "25%", "ttl_s": None}})
    await office.refused(403, "PATCH", path, admin, {"cache_policy": {"max_entries": 11}})
    await office.refused(403, "PATCH", path, admin, {"cache_policy": {"hit_price": "24%"}})
    # when the admin replaces the policy, without the cap or with the very same one
    changed = await office.ok("PATCH", path, admin, {"cache_policy": {"threshold": 0.97}})
    again = await office.ok("PATCH", path, admin, {"cache_policy": {"threshold": 0.98, "max_entries": 10}})
    # then cap and price stay
    assert changed["cache_policy"] == {"threshold": 0.97, "max_entries": 10, "hit_price": "25%"}
    assert again["cache_policy"] == {"threshold": 0.98, "max_entries": 10, "hit_price": "25%"}


@pytest.mark.parametrize("stored", [{"max_entries": 2**70}, {"colour": "red"}, {"ttl_s": "soon"}, [1], "x"])
async def test_a_chat_is_served_under_the_servers_policy_where_the_stored_one_is_junk(
    office: Office, stored: Any
) -> None:
    # given what an older version let in
    async with office.gateway.parts.billing.db.begin() as session:
        await session.execute(sa.update(Tenant).where(Tenant.id == office.acme.id).values(cache_policy=stored))
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    # when the same chat comes twice
    outcomes = []
    for _ in range(2):
        response = await office.call("POST", "/v1/chat/completions", office.acme.keys["inference"], body)
        assert response.status_code == 200, response.text
        outcomes.append(response.headers["x-weir-cache"].partition(";")[0])
    # then the server's cache serves the second
    assert outcomes == ["miss", "hit"]
