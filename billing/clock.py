"""Time, passed in: everything that asks for the hour takes a `Clock`, so that tests can stop it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]

BUCKET_S = 900  # roll-ups of 15 minutes: every time zone's days (+5:30, +5:45, +9:30 too) are whole buckets


def utc_now() -> datetime:
    """Now, aware, in UTC."""
    return datetime.now(UTC)


def bucket_of(moment: datetime) -> int:
    """The start of the moment's 15-minute bucket, in Unix seconds."""
    seconds = int(moment.timestamp())
    return seconds - seconds % BUCKET_S
