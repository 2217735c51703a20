"""Live data is recognised by its wording; published on the labelled list, and held to its bars here."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from cache.live_data import is_live

TODAY = date(2026, 11, 29)
LISTED = Path(__file__).parents[2] / "benchmarks" / "data" / "cache_quality" / "live.tsv"


def test_on_the_labelled_list_recall_is_95_and_precision_90_per_cent() -> None:
    rows = [line.split("\t") for line in LISTED.read_text("utf-8").splitlines()]
    found = {"live": 0, "stable": 0}
    for label, question in rows:
        found[label] += is_live(question, today=TODAY)
    num_live = sum(label == "live" for label, _ in rows)
    assert len(rows) == 200
    assert found["live"] / num_live >= 0.95
    assert found["live"] / sum(found.values()) >= 0.90


@pytest.mark.parametrize(
    ("question", "live"),
    [
        ("What happens on 2026-12-05?", True),
        ("Is the office open on 1 December?", True),
        ("What did the treaty of 3 March 1918 say?", False),
        ("12月3日有什么活动？", True),
        ("Was passiert am 2026-02-31?", False),  # no such day
        ("Translate 'the current price of gold' into German.", False),
        ('Rewrite "what is the weather today" politely.', False),
        ("Who won the 1998 World Cup final?", False),
        ("Who won the match yesterday?", True),
    ],
)
def test_dates_quotations_and_history(question: str, live: bool) -> None:
    assert is_live(question, today=TODAY) is live


def test_the_same_date_is_live_near_it_and_history_later() -> None:
    question = "What happened on 5 December 2026?"
    assert is_live(question, today=date(2026, 12, 1))
    assert not is_live(question, today=date(2028, 1, 1))
