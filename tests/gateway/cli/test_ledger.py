"""`weir ledger`, `weir reconcile`, `weir audit` over real books."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from billing.errors import Invalid
from tests.gateway.cli.conftest import Weir, on_both_databases


@on_both_databases
def test_rows_are_listed_newest_first_with_their_key_and_exact_amount(weir: Weir, key: str) -> None:
    for number in range(3):
        weir.book(key, request_id=f"req_{number}")
    rows = weir.json("ledger", "list", "--tenant", "acme")
    assert [row["request_id"] for row in rows] == ["req_2", "req_1", "req_0"]
    first = rows[0]
    assert (first["attempt"], first["kind"], first["seq"], first["status"]) == (1, "usage", 0, "ok")
    assert (first["amount_nano_usd"], first["amount_usd"]) == (27_750, "0.00002775")
    assert (first["prompt_tokens"], first["completion_tokens"]) == (1000, 100)
    assert (first["tenant"], first["project"]) == ("acme", "web")


def test_list_pages_beyond_one_query_and_stops_at_its_limit(weir: Weir, key: str) -> None:
    for number in range(5):
        weir.book(key, request_id=f"req_{number}")
    assert len(weir.json("ledger", "list", "--limit", "3")) == 3
    assert [r["request_id"] for r in weir.json("ledger", "list", "--filter", "request=req_3")] == ["req_3"]


def test_show_prints_every_column_of_every_row_of_a_request(weir: Weir, key: str) -> None:
    weir.book(key, tags={"team": "blue"})
    weir.book(key, attempt=2)
    rows = json.loads(weir.ok("ledger", "show", "req_1"))
    assert [row["attempt"] for row in rows] == [1, 2]
    assert rows[0]["tags"] == {"team": "blue"}
    assert rows[0]["cached_input_amount_nano"] == 9_000
    absent = weir.run("ledger", "show", "req_9")
    assert absent.exit_code != 0


@on_both_databases
def test_reconcile_finds_agreement_then_a_drift_and_repairs_what_is_derived(weir: Weir, key: str) -> None:
    weir.book(key)
    assert weir.json("reconcile")["after"]["clean"] is True
    # when a roll-up is tampered with
    weir.tamper("UPDATE usage_rollup SET amount_nano_usd = amount_nano_usd + 1")
    drifted = weir.run("reconcile", "--check", "--json")
    assert drifted.exit_code == 3
    assert len(json.loads(drifted.stdout)["before"]["buckets_wrong"]) >= 1  # its day's sums disagree with it too
    # then repairing mends it, and the ledger is as it was
    assert weir.json("reconcile")["after"]["clean"] is True
    assert weir.json("report", "spend")[0]["amount_nano_usd"] == 27_750


def test_audit_lists_acts_newest_first(weir: Weir) -> None:
    events = weir.json("audit")
    assert [event["action"] for event in events] == ["project.created", "tenant.created"]
    assert weir.json("audit", "--action", "tenant.created")[0]["detail"] == {"slug": "acme"}


def test_apply_shows_the_difference_first_and_asks(weir: Weir, tmp_path: Path) -> None:
    file = tmp_path / "books.toml"
    file.write_text(
        """
        [[tenants]]
        slug = "acme"
        limits = { rpm = 600, budget_month = "2500000.370000001" }
        [[prices]]
        model = "m"
        input = "0.0375"
        output = "0.15"
        """
    )
    shown = weir.ok("apply", str(file), "--dry-run")
    assert "+ tenant acme budget_month: hard $2500000.370000001" in shown
    # when it is refused at the question, nothing happens; with --yes all of it does
    assert weir.run("apply", str(file), stdin="n\n").exit_code != 0
    assert weir.json("limits", "list") == []
    weir.ok("apply", str(file), "--yes")
    assert {rule["quota"]: rule["hard"] for rule in weir.json("limits", "list")} == {
        "rpm": 600,
        "budget_month": "2500000.370000001",
    }
    assert weir.json("prices", "list")[0]["input"] == "0.0375"
    assert "nothing to change" in weir.ok("apply", str(file), "--yes")


def test_apply_with_one_fault_changes_nothing(weir: Weir, tmp_path: Path) -> None:
    file = tmp_path / "books.toml"
    file.write_text('[[tenants]]\nslug = "acme"\nlimits = { rpm = 600, "warp" = 9 }\n')
    assert weir.run("apply", str(file), "--yes").exit_code != 0
    file.write_text('[[tenants]]\nslug = "acme"\nquota = 5\n')
    assert weir.run("apply", str(file), "--yes").exit_code != 0
    file.write_text('[[tenants]]\nslug = "acme"\nlimits = { rpm = 600 }\ncache_policy = { hit_price = "150%" }\n')
    refused = weir.run("apply", str(file), "--yes")
    assert "hit_price" in str(refused.exception)
    assert weir.json("limits", "list") == []


def test_alert_webhooks_are_made_listed_and_removed_and_the_secret_is_shown_once(weir: Weir) -> None:
    [made] = weir.json("alerts", "create", "https://example.com/hook", "--tenant", "acme", "--kind", "soft_limit")
    assert made["secret"].startswith("whsec_")
    listed = weir.ok("alerts", "list", "--json")
    assert made["secret"] not in listed
    assert json.loads(listed)[0]["kinds"] == ["soft_limit"]
    weir.ok("alerts", "remove", made["id"])
    assert weir.json("alerts", "list") == []
    assert weir.run("alerts", "create", "ftp://example.com").exit_code != 0


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
@pytest.mark.parametrize(
    "command",
    [
        ("report", "spend"),
        ("audit",),
        ("prices", "set", "m", "--input", "1", "--output", "1"),
    ],
)
def test_a_moment_near_the_ends_of_time_is_an_error_that_names_the_years(
    weir: Weir, command: tuple[str, ...], moment: str
) -> None:
    refused = weir.run(*command, "--from", moment)
    assert isinstance(refused.exception, Invalid)  # which the command's entry prints
    assert "not within the years 1970 to 9998" in str(refused.exception)
