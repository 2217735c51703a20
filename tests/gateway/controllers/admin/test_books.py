"""/admin/v1/reports, /ledger, /reconcile, /audit."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from billing.reports.registry import REPORTS
from tests.gateway.controllers.admin.conftest import Office, book, on_both_databases

LEDGER, REPORT = "/admin/v1/ledger", "/admin/v1/reports/spend"
A_ROW = 3_750 + 9_000 + 15_000  # nano-USD of a row as `book` makes it


async def test_report_shows_names_exact_usd_and_a_total(office: Office) -> None:
    await book(office.gateway, office.acme.keys["member"], request_id="req_2")
    report = await office.ok("GET", REPORT, params={"by": "tenant,model"})
    rows = {row["tenant"]: row for row in report["rows"]}
    assert rows["globex"]["amount_usd"] == "0.0000555"
    assert rows["globex"]["tenant_id"] == office.acme.id
    assert (rows["globex"]["prompt_tokens"], rows["globex"]["completion_tokens"]) == (2000, 200)
    assert report["total"]["amount_nano_usd"] == 3 * A_ROW


@on_both_databases
async def test_report_is_filtered_and_cut_where_asked(office: Office) -> None:
    moment = datetime(2026, 11, 15, 19, 0, tzinfo=UTC)
    await book(office.gateway, office.acme.keys["member"], request_id="req_2", model="x", accepted_at=moment)
    query = {"by": "day", "time_zone": "Asia/Kolkata", "filter[model]": "x", "from": "2026-11-16", "to": "2026-11-17"}
    assert [row["day"] for row in (await office.ok("GET", REPORT, params=query))["rows"]] == ["2026-11-16"]
    query["time_zone"] = "UTC"
    assert (await office.ok("GET", REPORT, params=query))["rows"] == []


async def test_every_report_of_the_registry_has_an_endpoint(office: Office) -> None:
    listed = [report["name"] for report in await office.ok("GET", "/admin/v1/reports")]
    assert listed == list(REPORTS)
    for name in listed:
        assert (await office.ok("GET", f"/admin/v1/reports/{name}"))["name"] == name
        assert (await office.ok("GET", f"/admin/v1/reports/{name.replace('_', '-')}"))["name"] == name
    await office.refused(404, "GET", "/admin/v1/reports/horoscope")


async def test_bad_report_query_is_400_and_named(office: Office) -> None:
    for query, param in (
        ({"by": "planet"}, "by"),
        ({"from": "yesterday"}, "from"),
        ({"from": "2026-01-01", "time_zone": "Mars/Base"}, "time_zone"),
        ({"colour": "red"}, "colour"),
    ):
        assert (await office.refused(400, "GET", REPORT, params=query))["param"] == param


@on_both_databases
async def test_ledger_pages_by_keyset_without_losing_or_repeating_a_row(office: Office) -> None:
    for number in range(5):
        await book(office.gateway, office.acme.keys["member"], request_id=f"req_{number}")
    seen: list[str] = []
    query: dict[str, Any] = {"tenant": "globex", "limit": 2}
    for _ in range(5):
        page = await office.ok("GET", LEDGER, params=query)
        seen += [row["request_id"] for row in page["data"]]
        query["after"] = page["last_id"]
        if not page["has_more"]:
            break
        # rows that come in meanwhile are newer: they disturb no page
        await book(office.gateway, office.acme.keys["member"], request_id=f"late_{len(seen)}")
    assert seen == ["req_4", "req_3", "req_2", "req_1", "req_0", "req_of_globex"]


async def test_ledger_is_filtered_by_every_spelling_of_a_list(office: Office) -> None:
    for number in range(3):
        await book(office.gateway, office.acme.keys["member"], request_id=f"req_{number}", conversation_id=f"c{number}")
    for query in ("conversation=c0&conversation=c2", "conversation[]=c0&conversation[]=c2"):
        page = await office.ok("GET", f"{LEDGER}?{query}")
        assert [row["request_id"] for row in page["data"]] == ["req_2", "req_0"]


async def test_requests_rows_come_whole_to_their_owner_alone(office: Office) -> None:
    await book(office.gateway, office.acme.keys["member"], request_id="req_x", tags={"team": "blue"})
    [row] = await office.ok("GET", f"{LEDGER}/req_x", office.acme.keys["member"])
    assert (row["tags"], row["amount_usd"], row["cached_input_amount_nano"]) == ({"team": "blue"}, "0.00002775", 9_000)
    await office.refused(404, "GET", f"{LEDGER}/req_x", office.rival.keys["admin"])


async def test_reconcile_sees_a_tampered_roll_up_and_repairs_it(office: Office) -> None:
    assert (await office.ok("POST", "/admin/v1/reconcile"))["clean"] is True
    async with office.gateway.parts.billing.db.begin() as session:
        await session.execute(sa.text("UPDATE usage_rollup SET amount_nano_usd = amount_nano_usd + 1"))
    found = await office.ok("GET", "/admin/v1/reconcile")
    assert found["clean"] is False
    assert len(found["findings"]["buckets_wrong"]) >= 1  # its day's sums disagree with it too
    mended = await office.ok("POST", "/admin/v1/reconcile")
    assert mended["clean"] is True
    assert mended["repairs"]["buckets_rewritten"] >= 1


@on_both_databases
async def test_audit_is_paged_filtered_and_names_the_request(office: Office) -> None:
    admin = office.acme.keys["admin"]
    response = await office.call("POST", "/admin/v1/projects", admin, {"name": "Audited"})
    page = await office.ok("GET", "/admin/v1/audit", admin, params={"limit": 1})
    [event] = page["data"]
    assert page["has_more"] is True
    assert (event["action"], event["actor_id"]) == ("project.created", office.acme.key_ids["admin"])
    assert event["request_id"] == response.headers["x-request-id"]
    older = await office.ok("GET", "/admin/v1/audit", admin, params={"after": page["last_id"]})
    assert event["id"] not in [each["id"] for each in older["data"]]
    only = await office.ok("GET", "/admin/v1/audit", admin, params={"action": "tenant.created"})
    assert [each["resource_id"] for each in only["data"]] == [office.acme.id]


async def test_credit_is_booked_once_moves_the_budget_and_leaves_no_drift(office: Office) -> None:
    # given a day's budget of which a chat has used some
    budget = {"scope": "tenant", "scope_id": office.acme.id, "quota": "budget_day", "hard": "1"}
    await office.ok("PUT", "/admin/v1/limits", body=budget)
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    await office.ok("POST", "/v1/chat/completions", office.acme.keys["inference"], chat)
    await office.gateway.parts.background.drain(60)
    [before] = await office.ok("GET", "/admin/v1/limits/status", params={"tenant": "globex"})
    # when a credit is given, twice by mistake
    credit = {"tenant": "globex", "credit_usd": "0.000000001", "note": "a nano-dollar back", "id": "ticket-7"}
    row = await office.ok("POST", f"{LEDGER}/adjustments", body=credit)
    again = await office.ok("POST", f"{LEDGER}/adjustments", body=credit)
    # then it stands once, exactly, in the ledger, the report and the budget
    assert (row["kind"], row["amount_nano_usd"], row["note"]) == ("adjustment", -1, "a nano-dollar back")
    assert again["id"] == row["id"]
    [after] = await office.ok("GET", "/admin/v1/limits/status", params={"tenant": "globex"})
    assert Decimal(before["used"]) - Decimal(after["used"]) == Decimal("0.000000001")
    report = await office.ok("GET", REPORT, params={"by": "tenant", "tenant": "globex"})
    assert report["rows"][0]["amount_usd"] == after["used"]
    assert (await office.ok("GET", "/admin/v1/reconcile"))["findings"]["counters_wrong"] == []
    # and a request's id may stand on one too
    about = {**credit, "id": "req_of_globex"}
    assert (await office.ok("POST", f"{LEDGER}/adjustments", body=about))["kind"] == "adjustment"
    # but the same id with another amount is an error, not a second row
    await office.refused(409, "POST", f"{LEDGER}/adjustments", body={**credit, "credit_usd": "5"})
    for wrong in ({"credit_usd": "1", "debit_usd": "1"}, {}, {"debit_usd": "-1"}, {"debit_usd": "0"}):
        body = {"tenant": "globex", "note": "x", **wrong}
        await office.refused(400, "POST", f"{LEDGER}/adjustments", body=body)


async def test_what_tokens_cost_us_is_for_operators_alone(office: Office) -> None:
    await book(office.gateway, office.acme.keys["member"], request_id="req_c", cost_nano_usd=7, engine_us=9)
    paths = (REPORT, "/admin/v1/reports/cache-savings", "/admin/v1/reports/requests", LEDGER, f"{LEDGER}/req_c")
    for key in (office.acme.keys["admin"], office.acme.keys["member"]):
        for path in paths:
            text = (await office.call("GET", path, key)).text
            assert "cost" not in text, path
            assert "engine_us" not in text, path
        assert "margin" not in (await office.call("GET", "/admin/v1/reports", key)).text
        await office.refused(403, "GET", "/admin/v1/reports/margin", key)
    assert (await office.ok("GET", f"{LEDGER}/req_c"))[0]["cost_nano_usd"] == 7
    assert (await office.ok("GET", "/admin/v1/reports/margin"))["total"]["cost_nano_usd"] == 7
