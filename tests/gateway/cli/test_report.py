"""`weir report`: exact money, names beside ids, days where the tenant lives."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from billing.prices import TokenCounts
from tests.gateway.cli.conftest import RATES, Weir, on_both_databases


@on_both_databases
def test_spend_is_the_ledger_with_names_exact_usd_and_the_answers_own_token_counts(weir: Weir, key: str) -> None:
    # given two rows of 1000 prompt tokens (900 cached) and 100 output tokens
    amount = weir.book(key).amount_nano_usd + weir.book(key, request_id="req_2").amount_nano_usd
    [row] = weir.json("report", "spend", "--by", "tenant,model")
    # then 100 * 0.0375 + 900 * 0.01 + 100 * 0.15 dollars a million, twice
    assert amount == 2 * (3_750 + 9_000 + 15_000)
    assert (row["tenant"], row["model"], row["requests"]) == ("acme", "m", 2)
    assert (row["amount_usd"], row["amount_nano_usd"]) == ("0.0000555", amount)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (2000, 200)


def test_thousand_charges_of_a_millionth_of_a_dollar_print_as_a_thousandth(weir: Weir, key: str) -> None:
    # given a token of output at a dollar a million, charged a thousand times
    rates = msgspec.structs.replace(RATES, output=1_000_000_000)
    weir.book(key, times=1000, tokens=TokenCounts(output=1), rates=rates)
    [row] = weir.json("report", "spend", "--by", "tenant")
    assert row["amount_usd"] == "0.001"
    assert "0.001" in weir.ok("report", "spend")


@on_both_databases
def test_days_are_cut_where_the_tenant_lives(weir: Weir, key: str) -> None:
    # given a request at 19:00 UTC on the 15th, which is half past midnight on the 16th in Kolkata
    weir.book(key, accepted_at=datetime(2026, 11, 15, 19, 0, tzinfo=UTC))
    by_day = ("report", "spend", "--by", "day")
    assert [row["day"] for row in weir.json(*by_day, "--tenant", "acme")] == ["2026-11-16"]
    assert [row["day"] for row in weir.json(*by_day)] == ["2026-11-15"]
    window = ("--from", "2026-11-16", "--to", "2026-11-17")
    assert len(weir.json(*by_day, "--tenant", "acme", *window)) == 1
    assert weir.json(*by_day, *window) == []


def test_filters_and_unknown_names_are_told_apart(weir: Weir, key: str) -> None:
    weir.book(key)
    assert len(weir.json("report", "spend", "--filter", "model=m", "--filter", "model=x")) == 1
    assert weir.json("report", "spend", "--filter", "model=x") == []
    zone = ("--time-zone", "Mars/Base", "--from", "2026-01-01")
    for words in (("--by", "planet"), ("--filter", "planet=x"), ("--from", "yesterday"), zone):
        assert weir.run("report", "spend", *words).exit_code != 0, words


@on_both_databases
def test_every_report_of_the_registry_has_a_command(weir: Weir, key: str) -> None:
    from billing.reports.registry import REPORTS

    weir.book(key)
    for name in REPORTS:
        assert isinstance(weir.json("report", name.replace("_", "-")), list)
        assert weir.ok("report", name.replace("_", "-"))


def test_person_sees_a_total_in_usd(weir: Weir, key: str) -> None:
    weir.book(key)
    weir.book(key, request_id="req_2", model="n")
    printed = weir.ok("report", "spend", "--by", "model")
    assert printed.splitlines()[-1].split()[0] == "total"
    assert "0.0000555" in printed.splitlines()[-1]
