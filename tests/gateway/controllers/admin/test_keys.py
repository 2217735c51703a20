"""/admin/v1/keys: shown once, changed hot, revoked everywhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.gateway.controllers.admin.conftest import Office

KEYS = "/admin/v1/keys"


async def test_plaintext_is_in_the_answer_that_makes_the_key_and_nowhere_else(office: Office) -> None:
    admin = office.acme.keys["admin"]
    made = await office.ok("POST", KEYS, admin, {"project": office.acme.project, "name": "ci"})
    assert made["key"].startswith("sk-weir-")
    secret = made["key"].rsplit("-", 1)[1]
    shown = await office.call("GET", f"{KEYS}/{made['details']['id']}", admin)
    listed = await office.call("GET", KEYS, admin)
    assert secret not in shown.text + listed.text
    assert shown.json() == made["details"]
    assert made["details"]["redacted"].endswith(secret[-4:])


async def test_new_key_calls_models_and_a_revoked_one_does_not(office: Office) -> None:
    admin = office.acme.keys["admin"]
    made = await office.ok("POST", KEYS, admin, {"project": office.acme.project})
    headers = {"authorization": f"Bearer {made['key']}"}
    assert (await office.gateway.client.get("/v1/models", headers=headers)).status_code == 200
    revoked = await office.ok("DELETE", f"{KEYS}/{made['details']['id']}", admin)
    assert revoked["status"] == "revoked"
    assert (await office.gateway.client.get("/v1/models", headers=headers)).status_code == 401
    listed = [key["id"] for key in (await office.ok("GET", KEYS, admin))["data"]]
    assert made["details"]["id"] not in listed


async def test_rotated_key_keeps_its_id_and_the_old_secret_works_until_the_grace_is_over(office: Office) -> None:
    admin = office.acme.keys["admin"]
    made = await office.ok("POST", KEYS, admin, {"project": office.acme.project, "scopes": ["usage:read"]})
    path = f"{KEYS}/{made['details']['id']}"
    rotated = await office.ok("POST", f"{path}/rotate", admin, {"grace_s": 3600})
    assert rotated["details"]["id"] == made["details"]["id"]
    assert rotated["details"]["old_secret_until"] is not None
    for plaintext in (made["key"], rotated["key"]):
        await office.ok("GET", path, plaintext)
    again = await office.ok("POST", f"{path}/rotate", admin, {"grace_s": 0})
    await office.refused(401, "GET", path, rotated["key"])
    await office.ok("GET", path, again["key"])


async def test_allow_list_is_set_kept_and_taken_away(office: Office) -> None:
    admin = office.acme.keys["admin"]
    made = await office.ok("POST", KEYS, admin, {"project": office.acme.project, "allowed_models": ["other"]})
    path = f"{KEYS}/{made['details']['id']}"
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    await office.refused(404, "POST", "/v1/chat/completions", made["key"], chat)
    # when another field changes, the list stays; null takes it away
    assert (await office.ok("PATCH", path, admin, {"name": "x"}))["allowed_models"] == ["other"]
    assert (await office.ok("PATCH", path, admin, {"allowed_models": None}))["allowed_models"] is None
    await office.ok("POST", "/v1/chat/completions", made["key"], chat)


async def test_nobody_gives_a_key_more_than_he_has(office: Office) -> None:
    body = {"project": office.acme.project, "role": "operator", "scopes": ["admin"]}
    await office.refused(403, "POST", KEYS, office.acme.keys["admin"], body)


async def test_admin_may_not_touch_an_operators_key(office: Office) -> None:
    body = {"project": office.acme.project, "role": "operator", "scopes": ["admin"]}
    made = await office.ok("POST", KEYS, body=body)
    path = f"{KEYS}/{made['details']['id']}"
    await office.refused(403, "DELETE", path, office.acme.keys["admin"])
    await office.refused(403, "POST", f"{path}/rotate", office.acme.keys["admin"], {})


async def test_bad_value_is_400_and_names_its_field(office: Office) -> None:
    for field, value in (
        ("scopes", ["root"]),
        ("role", "king"),
        ("max_service_tier", "gold"),
        ("max_priority", 9),
        ("expires_at", "2020-01-01T00:00:00Z"),
        ("expires_at", "2090-01-01T00:00:00"),  # without a zone
        ("tags", {"k": 5}),
        ("name", ""),
    ):
        body = {"project": office.acme.project, field: value}
        error = await office.refused(400, "POST", KEYS, office.acme.keys["admin"], body)
        assert (error["param"] or "").startswith(field)


async def test_expiry_is_kept_to_the_second_and_shown_with_its_zone(office: Office) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    body = {"project": office.acme.project, "expires_at": moment.isoformat()}
    made = await office.ok("POST", KEYS, office.acme.keys["admin"], body)
    assert datetime.fromisoformat(made["details"]["expires_at"]) == moment


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "1969-12-31T00:00:00Z"])
async def test_a_moment_near_the_ends_of_time_is_400_wherever_it_is_sent(office: Office, moment: str) -> None:
    priced = {"model": "m", "input": "1", "output": "1"}
    price = await office.ok("POST", "/admin/v1/prices", body={**priced, "effective_from": "2031-01-01T00:00:00Z"})
    key = f"{KEYS}/{office.acme.key_ids['member']}"
    for method, path, field, body in (
        ("POST", KEYS, "expires_at", {"project": office.acme.project}),
        ("PATCH", key, "expires_at", {}),
        ("POST", "/admin/v1/prices", "effective_from", priced),
        ("POST", "/admin/v1/prices", "effective_to", priced),
        ("POST", f"/admin/v1/prices/{price['id']}/end", "at", {}),
        ("POST", "/admin/v1/discounts", "effective_to", {"tenant": office.acme.id, "percent": "5"}),
        ("POST", "/admin/v1/gpu-prices", "effective_from", {"upstream": "local", "hour_usd": "1"}),
    ):
        error = await office.refused(400, method, path, body={**body, field: moment})
        assert (error["param"], "1970 to 9998" in error["message"]) == (field, True)
    for path in ("/admin/v1/ledger", "/admin/v1/audit"):
        for field in ("from", "to"):
            error = await office.refused(400, "GET", path, params={field: moment})
            assert (error["param"], "1970 to 9998" in error["message"]) == (field, True)
