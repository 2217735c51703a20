"""Calendar windows of budgets: days, ISO weeks and months of a time zone, as instants in UTC."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import msgspec


class Window(msgspec.Struct, frozen=True):
    """[start, end) in UTC. `label` is the local first day, such as 2026-12-01."""

    start: datetime
    end: datetime
    label: str


def window_of(period: str, moment: datetime, time_zone: str) -> Window:
    """The day, week (from Monday) or month that `moment` falls into where the tenant lives.

    A local midnight that a clock change skips is the instant of the change.
    """
    local = moment.astimezone(ZoneInfo(time_zone)).date()
    return _window(period, local, time_zone)


@lru_cache(maxsize=4096)
def _window(period: str, day: date, time_zone: str) -> Window:
    if period == "day":
        first, after = day, day + timedelta(days=1)
    elif period == "week":
        first = day - timedelta(days=day.weekday())
        after = first + timedelta(days=7)
    elif period == "month":
        first = day.replace(day=1)
        after = (first + timedelta(days=32)).replace(day=1)
    else:
        raise AssertionError(f"unknown window {period!r}")
    return Window(_midnight(first, time_zone), _midnight(after, time_zone), first.isoformat())


def _midnight(day: date, time_zone: str) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(time_zone)).astimezone(UTC)
