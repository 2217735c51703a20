"""Budget windows in the tenant's time zone, across clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.clock import BUCKET_S
from billing.windows import window_of


@pytest.mark.parametrize(
    "zone", ["Asia/Tokyo", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Adelaide"]
)
def test_a_day_turns_at_local_midnight_and_not_an_offset_late(zone: str) -> None:
    midnight = datetime(2026, 7, 2, tzinfo=ZoneInfo(zone))
    before = window_of("day", midnight - timedelta(seconds=1), zone)
    after = window_of("day", midnight, zone)
    assert (before.label, after.label) == ("2026-07-01", "2026-07-02")
    assert before.end == after.start == midnight


def test_a_week_starts_on_monday() -> None:
    sunday = datetime(2026, 11, 29, 23, 59, 59, tzinfo=ZoneInfo("Europe/Berlin"))
    assert window_of("week", sunday, "Europe/Berlin").label == "2026-11-23"
    assert window_of("week", sunday + timedelta(seconds=1), "Europe/Berlin").label == "2026-11-30"


def test_days_of_a_clock_change_last_23_and_25_hours() -> None:
    spring = window_of("day", datetime(2026, 3, 29, 12, tzinfo=UTC), "Europe/Berlin")
    autumn = window_of("day", datetime(2026, 10, 25, 12, tzinfo=UTC), "Europe/Berlin")
    assert spring.end - spring.start == timedelta(hours=23)
    assert autumn.end - autumn.start == timedelta(hours=25)


def test_a_midnight_that_a_clock_change_skips_is_the_instant_of_the_change() -> None:
    # In Cairo clocks go from 00:00 to 01:00 on the last Friday of April.
    day = window_of("day", datetime(2026, 4, 24, 12, tzinfo=UTC), "Africa/Cairo")
    assert day.start == datetime(2026, 4, 23, 22, tzinfo=UTC)
    assert day.end - day.start == timedelta(hours=23)


def test_december_is_followed_by_january() -> None:
    month = window_of("month", datetime(2026, 12, 31, 20, tzinfo=UTC), "Asia/Tokyo")
    assert (month.label, month.end) == ("2027-01-01", datetime(2027, 1, 31, 15, tzinfo=UTC))


@given(
    st.integers(min_value=1_577_836_800, max_value=2_051_222_400).map(lambda s: datetime.fromtimestamp(s, UTC)),
    st.sampled_from(["day", "week", "month"]),
    st.sampled_from(["UTC", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Chatham"]),
)
def test_every_moment_lies_in_its_window_and_windows_are_whole_buckets(
    moment: datetime, period: str, zone: str
) -> None:
    window = window_of(period, moment, zone)
    assert window.start <= moment < window.end
    assert window.start.timestamp() % BUCKET_S == window.end.timestamp() % BUCKET_S == 0
    assert window_of(period, window.end, zone).start == window.end
